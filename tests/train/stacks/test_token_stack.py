"""One rollout's training: anchors, updates, means that are means, fillers without influence."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from rl_core.algorithms import algorithms
from rl_core.algorithms.base import StageAlgorithm
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.requirements.trainers import check_multi_update
from rl_core.data_proto import DataProto
from rl_core.errors import RecipeError
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.micro_batches import Lengths
from rl_core.train.result import TrainStepResult, UpdateResult
from rl_core.train.stacks.token_stack import TrainStack
from schemas.sections.policy import FSDPConfig
from tests.algorithms.denominators import denominators_of
from tests.train.jobs import (
    LORA,
    WITH_KL,
    Setup,
    batch,
    largest_difference,
    log_probs,
    make_both,
    same_bits,
    shard_of,
    train,
)
from tests.train.ranks import Ranks

PASSES: dict[str, dict[str, Any]] = {"padded": {}, "packed": {"max_tokens_per_micro_batch": 25}}
each_pass = pytest.mark.parametrize("passes", PASSES)


class Once(StageAlgorithm):
    """An algorithm that may train on a rollout once."""

    supports_multi_update: ClassVar[bool] = False

    def advantages(self, rewards_B: Tensor, group_ids_B: Tensor, mask_BT: Tensor) -> Any:
        raise NotImplementedError

    def loss(self, log_probs_BT: Tensor, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


def test_several_updates_need_an_algorithm_that_allows_them() -> None:
    grpo, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    check_multi_update(grpo(config), 4, 2)
    check_multi_update(Once(None), 1, 1)
    for key, numbers in (("num_updates_per_batch", (2, 1)), ("num_epochs", (1, 2))):
        with pytest.raises(
            RecipeError, match=f"training.{key} is 2, but algorithm Once does not correct"
        ):
            check_multi_update(Once(None), *numbers)
        with pytest.raises(
            RecipeError, match=f"training.{key} is 2, but algorithm Once does not correct"
        ):
            TrainStack(None, Once(None), micro_batch_size=1, **{key: 2})  # type: ignore[arg-type]


@each_pass
def test_a_rollout_is_cut_into_disjoint_updates_and_every_epoch_takes_them_all(
    ranks: Ranks, tiny_model_dir: Path, passes: str
) -> None:
    """REINFORCE knows no old policy: with it the steps are those of one half of the rows after the
    other, twice."""
    setup = Setup(str(tiny_model_dir), algorithm={"name": "gpg"}, stack=PASSES[passes])
    cut, halves = ranks.run(1, cut_and_halved, setup)[0]
    assert len(cut[1]) == 4 and cut[1] == halves[1]
    assert cut[1][0].num_tokens != cut[1][1].num_tokens
    assert same_bits(cut[0], halves[0])


def cut_and_halved(
    rank_info: RankInfo, setup: Setup
) -> list[tuple[dict[str, Tensor], list[UpdateResult]]]:
    """The weights and the steps of a stack that cuts eight rows itself, and of one that is given
    four at a time."""
    said = []
    for num_updates, shards in ((2, [batch(0)]), (1, batch(0).split(4) * 2)):
        backend, stack = make_both(rank_info, setup)
        stack.num_updates_per_batch, stack.num_epochs = num_updates, num_updates
        steps = [step for shard in shards for step in stack.train(shard).per_update]
        said.append((backend.full_state(), steps))
    return said


def test_passes_keep_a_processor_busy_where_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 128 rows of 100 tokens, 81 would fit in 8192: two even passes, in 4096 four; 8 rows each
    elsewhere."""
    computed = SimpleNamespace(
        fsdp_cfg=FSDPConfig(),
        device=torch.device("cpu"),
        enable_prompt_sharing=lambda: True,
        pads=True,
    )
    algorithm_cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    units = [[row] for row in range(128)]

    def sizes(*instructions: str, share_prompts: bool = True, **said: int) -> list[int]:
        for name in ("amx_tile", "avx512_bf16"):
            monkeypatch.setattr(
                torch.cpu, f"_is_{name}_supported", lambda name=name: name in instructions
            )
        stack: Any = TrainStack(
            computed, algorithm_cls(config), share_prompts=share_prompts, **said
        )  # type: ignore[arg-type]
        return [len(part) for part in stack._cut(units, Lengths([100] * 128))]

    assert sizes("avx512_bf16", "amx_tile") == [64, 64]
    assert sizes("avx512_bf16") == [32, 32, 32, 32]
    assert sizes() == [8] * 16
    assert sizes("avx512_bf16", share_prompts=False) == [8] * 16, "padding would come on top"
    assert sizes("avx512_bf16", micro_batch_size=16) == [16] * 8


def test_a_prompt_that_siblings_share_counts_once_in_a_pass(
    ranks: Ranks, tiny_model_dir: Path
) -> None:
    for shares, sizes in ((True, [8, 8]), (False, [4, 4, 4, 4])):
        setup = Setup(
            str(tiny_model_dir), stack={"max_tokens_per_micro_batch": 80, "share_prompts": shares}
        )
        assert ranks.run(1, sizes_of_passes, setup) == [sizes]


def sizes_of_passes(rank_info: RankInfo, setup: Setup) -> list[int]:
    """Of four prompts of 16 tokens and four replies of 4 tokens to each."""
    _, stack = make_both(rank_info, setup)
    ids = torch.arange(4).repeat_interleave(4)[:, None] + torch.arange(20)
    ids[:, 16:] = torch.arange(16)[:, None]
    ones = torch.ones_like(ids)
    columns = {"input_ids": ids, "attention_mask": ones, "position_ids": ones.cumsum(-1) - 1}
    shard = DataProto.from_dict({**columns, "response_mask": ones[:, 16:]})
    (mini_batch,) = stack._plan(shard)
    return [len(rows) for rows in mini_batch.micro_batches]


def anchored(rank_info: RankInfo, setup: Setup) -> dict[str, Any]:
    """The anchor a training leaves in its shard, and what the policy said before the first
    update."""
    backend, stack = make_both(rank_info, setup)
    rows = shard_of(rank_info, batch(0))
    with backend.gathered() as policy:
        before = log_probs(policy, rows)
    result = stack.train(rows)
    with backend.gathered() as policy:
        after = log_probs(policy, rows)
    assert rows.batch is not None
    return {
        "anchor": rows.batch["old_log_probs"],
        "before": before,
        "after": after,
        "result": result,
    }


@pytest.mark.parametrize(("world_size", "passes"), [(1, "packed"), (2, "padded")])
def test_the_anchor_is_frozen_before_the_first_of_several_updates(
    ranks: Ranks, tiny_model_dir: Path, passes: str, world_size: int
) -> None:
    setup = Setup(
        str(tiny_model_dir), stack={"num_updates_per_batch": 2, "num_epochs": 3, **PASSES[passes]}
    )
    for said in ranks.run(world_size, anchored, setup):
        torch.testing.assert_close(said["anchor"], said["before"], atol=1e-6, rtol=0)
        assert (said["after"] - said["before"]).abs().max() > 1e-3
        assert len(said["result"].per_update) == 6
        assert said["result"].metrics["ratio_max"].result() > 1.001


@each_pass
def test_the_first_ratio_is_exactly_one(ranks: Ranks, tiny_model_dir: Path, passes: str) -> None:
    # A rate this small moves nothing in float32, so every update is a first one.
    stack = {"num_updates_per_batch": 2, "num_epochs": 2, "max_grad_norm": 1e-30, **PASSES[passes]}
    result = ranks.run(1, frozen, Setup(str(tiny_model_dir), stack=stack))[0]
    assert result.metrics["ratio_max"].result() == 1.0
    assert result.metrics["ratio_mean"].result() == 1.0


def frozen(rank_info: RankInfo, setup: Setup) -> TrainStepResult:
    backend, stack = make_both(rank_info, setup)
    for group in backend.optimizer.param_groups:
        group["lr"], group["initial_lr"] = 0.0, 0.0
    backend.scheduler.base_lrs = [0.0]
    return stack.train(batch(0))


@pytest.mark.parametrize(
    ("passes", "stack"),
    [
        ("padded", {}),
        ("padded", {"num_updates_per_batch": 2, "num_epochs": 2}),
        ("packed", {"num_updates_per_batch": 2, "num_epochs": 2}),
    ],
    ids=["padded, one", "padded, four", "packed, four"],
)
def test_filler_rows_change_nothing(
    ranks: Ranks, tiny_model_dir: Path, passes: str, stack: dict[str, Any]
) -> None:
    setup = Setup(str(tiny_model_dir), stack={**stack, **PASSES[passes]}, algorithm=WITH_KL)
    without = ranks.run(1, filled, setup, 0)[0]
    with_fillers = ranks.run(1, filled, setup, 3)[0]
    assert same_bits(without[0], with_fillers[0])
    assert without[1] == with_fillers[1]


def filled(
    rank_info: RankInfo, setup: Setup, num_fillers: int
) -> tuple[dict[str, Tensor], TrainStepResult]:
    """Train with rows at both ends that have no response and absurd content."""
    backend, stack = make_both(rank_info, setup)
    rows = batch(0)
    if num_fillers:
        filler = rows[[0] * num_fillers]
        assert filler.batch is not None
        filler.batch["response_mask"] = torch.zeros_like(filler.batch["response_mask"])
        filler.batch["rollout_log_probs"] = torch.full_like(
            filler.batch["rollout_log_probs"], math.nan
        )
        filler.batch["advantages"] = torch.full_like(filler.batch["advantages"], 1e9)
        rows = DataProto.concat([filler[:1], rows, filler[1:]])
    result = stack.train(rows)
    return backend.full_state(), result


@each_pass
def test_a_rank_of_fillers_only_keeps_in_step(
    ranks: Ranks, tiny_model_dir: Path, passes: str
) -> None:
    """Rank 1 has no row to train on; the step is that of rank 0's rows alone."""
    setup = Setup(str(tiny_model_dir), stack=PASSES[passes])
    alone = ranks.run(1, lopsided, setup)[0]
    beside = ranks.run(2, lopsided, setup)[0]
    assert largest_difference(alone[0], beside[0]) < 3e-6
    assert beside[1].loss == pytest.approx(alone[1].loss, abs=1e-6)


def lopsided(rank_info: RankInfo, setup: Setup) -> tuple[dict[str, Tensor], TrainStepResult]:
    backend, stack = make_both(rank_info, setup)
    rows = batch(0)
    if rank_info.rank == 1:
        assert rows.batch is not None
        for name in ("response_mask", "attention_mask"):
            rows.batch[name] = torch.zeros_like(rows.batch[name])
    result = stack.train(rows)
    return backend.full_state(), result


# Of 5 rows, one rank has a pass more than the other; of 7, a pass of fewer rows.
@pytest.mark.parametrize(("num_rows", "passes"), [(7, "padded"), (5, "padded"), (5, "packed")])
def test_uneven_shards_equal_one_rank(
    ranks: Ranks, tiny_model_dir: Path, passes: str, num_rows: int
) -> None:
    setup = Setup(str(tiny_model_dir), stack={"num_epochs": 2, **PASSES[passes]}, num_rows=num_rows)
    one = ranks.run(1, train, setup, [0, 1])[0]
    two = ranks.run(2, train, setup, [0, 1])
    assert largest_difference(one[0], two[0][0]) < 3e-6
    for step in range(2):
        merged = TrainStepResult.merge([answer[1][step] for answer in two]).to_floats()
        assert merged == pytest.approx(one[1][step].to_floats(), abs=2e-5)


def test_a_rollout_without_anything_to_learn_takes_no_step(
    ranks: Ranks, tiny_model_dir: Path
) -> None:
    weights, before, result, rate = ranks.run(2, unlearnt, Setup(str(tiny_model_dir)))[0]
    assert same_bits(weights, before)
    assert (result.skipped, result.per_update[0].skipped, result.per_update[0].num_tokens) == (
        1,
        True,
        0,
    )
    assert math.isnan(result.loss) and math.isnan(result.grad_norm)
    assert rate == 1


def unlearnt(rank_info: RankInfo, setup: Setup) -> Any:
    backend, stack = make_both(rank_info, setup)
    # One real step first, so that AdamW has momentum that an empty step would apply.
    stack.train(shard_of(rank_info, batch(0)))
    before = backend.full_state()
    rows = shard_of(rank_info, batch(1))
    assert rows.batch is not None
    rows.batch["response_mask"] = torch.zeros_like(rows.batch["response_mask"])
    result = stack.train(rows)
    return backend.full_state(), before, result, backend.scheduler.last_epoch


def test_a_gradient_that_is_not_finite_takes_no_step(ranks: Ranks, tiny_model_dir: Path) -> None:
    for weights, before, result, skipped in ranks.run(2, broken, Setup(str(tiny_model_dir))):
        assert weights.keys() == before.keys()
        assert all(torch.equal(weights[name], before[name]) for name in weights)
        assert (result.skipped, skipped) == (1, 1)
        assert not math.isfinite(result.per_update[0].grad_norm)


def broken(rank_info: RankInfo, setup: Setup) -> Any:
    backend, stack = make_both(rank_info, setup)
    before = backend.full_state()
    rows = shard_of(rank_info, batch(0))
    if rank_info.rank == 0:
        rows.tensor("advantages")[:] = math.inf
    result = stack.train(rows)
    return backend.full_state(), before, result, backend.num_skipped_steps


@pytest.mark.parametrize(
    ("lora", "fsdp"),
    [(None, {}), (None, {"param_dtype": "bfloat16"}), (LORA, {"param_dtype": "bfloat16"})],
    ids=["float32 copy", "bfloat16 copy", "adapters disabled"],
)
def test_the_reference_stays_where_training_began(
    ranks: Ranks, tiny_model_dir: Path, lora: Any, fsdp: dict[str, Any]
) -> None:
    setup = Setup(str(tiny_model_dir), fsdp=fsdp, lora=lora, algorithm=WITH_KL)
    said = ranks.run(2, referenced, setup)[0]
    assert torch.equal(said["start"], said["reference"])
    assert (said["live"] - said["start"]).abs().max() > 1e-3
    assert said["kl"][0] == pytest.approx(0, abs=1e-9)
    assert said["kl"][2] > 1e-7


def referenced(rank_info: RankInfo, setup: Setup) -> dict[str, Any]:
    """What the policy said at first, and what policy and reference say after three steps."""
    backend, stack = make_both(rank_info, setup)
    rows = batch(9)
    start = log_probs(backend.policy, rows)
    kl = [
        stack.train(shard_of(rank_info, batch(step))).metrics["kl_ref"].result()
        for step in range(3)
    ]
    live = log_probs(backend.policy, rows)
    with backend.reference_policy() as reference:
        return {"start": start, "live": live, "reference": log_probs(reference, rows), "kl": kl}


def test_the_loss_is_the_mean_of_the_updates_by_hand() -> None:
    updates = [
        UpdateResult(loss=2.0, grad_norm=1.0, lr=0.5, skipped=False, num_tokens=3),
        UpdateResult(loss=4.0, grad_norm=math.inf, lr=0.4, skipped=True, num_tokens=3),
        UpdateResult(loss=math.nan, grad_norm=math.nan, lr=0.4, skipped=True, num_tokens=0),
    ]
    metrics = [
        {
            "loss": Metric(MetricKind.SUM, value, 1.5),
            "ratio_mean": Metric(MetricKind.MEAN, 3.0, 1.5),
        }
        for value in (0.5, 1.5, 3.0, 1.0)
    ]
    result = TrainStepResult.of(updates, metrics)
    assert (result.loss, result.grad_norm, result.lr, result.skipped) == (3.0, 1.0, 0.4, 2)
    assert result.metrics["loss"].result() == 3.0
    assert result.metrics["ratio_mean"].result() == 2.0
    assert result.to_floats()["loss"] == 3.0


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_reported_loss_is_that_of_the_whole_batch(
    ranks: Ranks, tiny_model_dir: Path, world_size: int
) -> None:
    setup = Setup(str(tiny_model_dir), stack={"num_epochs": 2})
    for expected, result in ranks.run(world_size, measured, setup):
        assert result.per_update[0].loss == pytest.approx(expected, abs=1e-6)
        assert result.loss == pytest.approx(
            (result.per_update[0].loss + result.per_update[1].loss) / 2, abs=1e-9
        )
        assert result.per_update[0].loss != result.per_update[1].loss


def measured(rank_info: RankInfo, setup: Setup) -> tuple[float, TrainStepResult]:
    """The loss of the whole batch in one forward, beside what training reports."""
    backend, stack = make_both(rank_info, setup)
    rows = batch(0)
    mask_BT = rows.tensor("response_mask")
    log_probs_BT = log_probs(backend.policy, rows)
    loss, _ = stack.algorithm.loss(
        log_probs_BT=log_probs_BT,
        old_log_probs_BT=log_probs_BT,
        advantages_BT=rows.tensor("advantages"),
        mask_BT=mask_BT,
        ref_log_probs_BT=None,
        entropy_BT=None,
        denominators=denominators_of(mask_BT),
    )
    return float(loss), stack.train(shard_of(rank_info, rows))
