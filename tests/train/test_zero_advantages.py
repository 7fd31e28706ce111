"""Rows whose advantages are all 0: left out of the passes, and nothing is learnt differently."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rl_core.data_proto import DataProto
from rl_core.models.adapters.lora import inject_lora
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.critic import CriticStack
from rl_core.train.result import TrainStepResult
from schemas.recipe import LoraConfig
from tests.train.jobs import (
    LORA,
    WITH_KL,
    Setup,
    batch,
    largest_difference,
    make_both,
    make_bundle,
    same_bits,
    shard_of,
)
from tests.train.ranks import Ranks

SILENT: dict[str, list[int]] = {
    "some": [0, 3, 4],
    "a rank's all": [4, 5, 6, 7],
    "all": list(range(8)),
}
"""Rows without advantage, of 8 that two ranks halve."""
WAYS: dict[str, dict[str, Any]] = {
    "padded": {},
    "packed": {"max_tokens_per_micro_batch": 25},
    "four updates": {"num_updates_per_batch": 2, "num_epochs": 2},
}


def rows_with(silent: list[int], seed: int) -> DataProto:
    rows = batch(seed)
    rows.tensor("advantages")[silent] = 0
    return rows


def train(
    rank_info: RankInfo, setup: Setup, silent: list[int]
) -> tuple[dict[str, Tensor], TrainStepResult, int]:
    """A step with all rows and one with some silent ones: the weights, what the second said, its
    passes' rows."""
    backend, stack = make_both(rank_info, setup)
    stack.train(shard_of(rank_info, batch(0)))
    met: list[int] = []
    norm = backend.policy.language_model.model.norm
    norm.register_forward_hook(lambda _, args, __: met.append(args[0].shape[0] * args[0].shape[1]))
    result = stack.train(shard_of(rank_info, rows_with(silent, 1)))
    return backend.full_state(), result, sum(met)


@pytest.mark.parametrize(
    ("world_size", "which", "way"),
    [
        *((1, "some", way) for way in WAYS),
        (1, "all", "four updates"),
        *((2, "a rank's all", way) for way in WAYS),
        (2, "some", "four updates"),
        (2, "all", "packed"),
    ],
)
def test_the_same_is_learnt_from_fewer_rows(
    ranks: Ranks, tiny_model_dir: Path, world_size: int, which: str, way: str
) -> None:
    plain = Setup(str(tiny_model_dir), stack={**WAYS[way], "skip_zero_advantages": False})
    all_weights, all_result, all_tokens = ranks.run(world_size, train, plain, SILENT[which])[0]
    weights, result, tokens = ranks.run(
        world_size, train, Setup(str(tiny_model_dir), stack=WAYS[way]), SILENT[which]
    )[0]
    assert largest_difference(all_weights, weights) < 3e-6
    assert [update.num_tokens for update in result.per_update] == [
        update.num_tokens for update in all_result.per_update
    ]
    assert result.loss == pytest.approx(all_result.loss, abs=1e-6)
    assert result.grad_norm == pytest.approx(all_result.grad_norm, abs=1e-5)
    assert result.skipped == 0
    if world_size == 1:
        assert tokens < all_tokens


def test_a_step_of_silent_rows_still_lets_momentum_act(ranks: Ranks, tiny_model_dir: Path) -> None:
    setup = Setup(str(tiny_model_dir))
    start = ranks.run(1, train_once, setup)[0]
    weights, result, _ = ranks.run(1, train, setup, SILENT["all"])[0]
    assert largest_difference(start, weights) > 1e-5
    assert (result.loss, result.grad_norm) == (0.0, 0.0)


def train_once(rank_info: RankInfo, setup: Setup) -> dict[str, Tensor]:
    backend, stack = make_both(rank_info, setup)
    stack.train(shard_of(rank_info, batch(0)))
    return backend.full_state()


def test_rows_that_another_term_reads_are_computed(ranks: Ranks, tiny_model_dir: Path) -> None:
    setup = Setup(str(tiny_model_dir), algorithm=WITH_KL)
    plain = Setup(str(tiny_model_dir), algorithm=WITH_KL, stack={"skip_zero_advantages": False})
    one, two = (ranks.run(1, train, each, SILENT["some"])[0] for each in (plain, setup))
    assert same_bits(one[0], two[0]) and one[2] == two[2]


def test_measured_rows_stay_in_the_passes_they_were_measured_in(
    ranks: Ranks, tiny_model_dir: Path
) -> None:
    assert ranks.run(1, measured_first, Setup(str(tiny_model_dir), stack=WAYS["packed"]))[0] == 1.0


def measured_first(rank_info: RankInfo, setup: Setup) -> float:
    _, stack = make_both(rank_info, setup)
    rows = rows_with(SILENT["some"], 1)
    assert rows.batch is not None
    measured = stack.measure(DataProto(rows.batch.exclude("advantages")))
    assert measured is not None
    assert bool((measured.tensor("old_log_probs")[SILENT["some"]] != 0).any(-1).all())
    rows.batch["old_log_probs"] = measured.tensor("old_log_probs")
    return stack.train(rows).metrics["ratio_max"].result()


def test_a_critic_learns_from_all_rows(ranks: Ranks, tiny_model_dir: Path) -> None:
    assert ranks.run(1, planned_by_a_critic, Setup(str(tiny_model_dir)))[0] == list(range(8))


def planned_by_a_critic(rank_info: RankInfo, setup: Setup) -> list[int]:
    backend, stack = make_both(rank_info, setup)
    critic = CriticStack(backend, stack.algorithm, micro_batch_size=2)
    _, plan = critic.open(rows_with(SILENT["some"], 1))
    return sorted(row for mini_batch in plan for rows in mini_batch.micro_batches for row in rows)


def test_a_row_counts_when_one_action_has_an_advantage(ranks: Ranks, tiny_model_dir: Path) -> None:
    assert ranks.run(1, planned, Setup(str(tiny_model_dir)))[0] == [0, 2]


def planned(rank_info: RankInfo, setup: Setup) -> list[int]:
    _, stack = make_both(rank_info, setup)
    rows = rows_with(list(range(8)), 1)
    rows.tensor("advantages")[0, 0] = -1e-6
    rows.tensor("advantages")[2, 0] = torch.nan
    _, plan = stack.open(rows)
    return sorted(row for mini_batch in plan for rows in mini_batch.micro_batches for row in rows)


HEAD = LoraConfig(rank=4, alpha=8, target_modules=["q_proj", "down_proj", "lm_head"])


EACH_WAY = {
    **WAYS,
    "shared": {"share_prompts": True},
    "packed and shared": {"max_tokens_per_micro_batch": 25, "share_prompts": True},
}


@pytest.mark.parametrize(
    ("way", "lora", "param_dtype"),
    [
        *(pytest.param(EACH_WAY[way], HEAD, "bfloat16", id=f"{way}, head") for way in EACH_WAY),
        *(pytest.param(EACH_WAY[way], None, "float32", id=f"{way}, all") for way in EACH_WAY),
    ],
)
def test_a_step_without_a_token_to_learn_from_learns_nothing(
    ranks: Ranks,
    untied_model_dir: Path,
    way: dict[str, Any],
    lora: LoraConfig | None,
    param_dtype: str,
) -> None:
    setup = Setup(str(untied_model_dir), lora=lora, stack=way, fsdp={"param_dtype": param_dtype})
    loss, grad_norm, changed = ranks.run(1, train_on_nothing, setup)[0]
    assert (loss, grad_norm, changed) == (0.0, 0.0, 0.0)


def train_on_nothing(rank_info: RankInfo, setup: Setup) -> tuple[float, float, float]:
    """A first step in which all groups are flat: loss, gradient, and the largest change of a weight
    but for decay."""
    backend, stack = make_both(rank_info, setup)
    for group in backend.optimizer.param_groups:
        group["weight_decay"] = 0.0
    before = backend.full_state()
    result = stack.train(shard_of(rank_info, rows_with(SILENT["all"], 0)))
    return result.loss, result.grad_norm, largest_difference(before, backend.full_state())


@pytest.mark.parametrize(
    "lora", [HEAD, LORA, None], ids=["adapters on the head", "adapters", "all weights"]
)
def test_no_rows_have_no_log_probabilities(untied_model_dir: Path, lora: LoraConfig | None) -> None:
    """With gradient and entropy, packed, padded and shared, as where a rank's rows are all
    silent."""
    policy = make_bundle(str(untied_model_dir)).policy
    if lora is not None:
        inject_lora(policy, lora, seed=0)
    rows = batch(0)
    columns = {
        f"{name}_BL": rows.tensor(name) for name in ("input_ids", "attention_mask", "position_ids")
    }
    silent_BT = torch.zeros_like(rows.tensor("response_mask"))
    policy.enable_packing()
    assert policy.enable_prompt_sharing()
    for way in ({}, {"packed": True}, {"share_prompts": True}):
        options: dict[str, Any] = {"with_entropy": True, "entropy_grad": True, **way}
        log_probs_BT, entropy_BT = policy(**columns, response_mask_BT=silent_BT, **options)
        assert entropy_BT is not None
        (log_probs_BT.sum() + entropy_BT.sum()).backward()
        grads = [one.grad for one in policy.parameters() if one.grad is not None]
        assert all(not bool(grad.any()) for grad in grads)


@pytest.fixture(scope="module")
def untied_model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with a head of its own."""
    folder = tmp_path_factory.mktemp("untied")
    config = AutoConfig.from_pretrained(tiny_model_dir, tie_word_embeddings=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model_dir).save_pretrained(folder)
    return folder
