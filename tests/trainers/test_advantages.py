"""Advantages of rows that stay with their ranks: what the driver reads for them, and that they are
those of the whole batch."""

import pickle
from typing import Any

import pytest
import torch

from rl_core.algorithms import algorithms
from rl_core.algorithms.advantages import over_actions
from rl_core.algorithms.base import RowMeasures, StageAlgorithm
from rl_core.algorithms.presets import Grpo
from rl_core.algorithms.shaping import OverlongConfig
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, refs
from rl_core.distributed.refs import store
from rl_core.trainers.advantages import add_advantages
from rl_core.trainers.length_penalty import add_greedy_rewards, shape_overlong
from rl_core.trainers.masking import num_actions
from tests.distributed.components import count_fetches

NUM_ROWS, GROUP_SIZE, NUM_TOKENS = 12, 3, 40
GROUPS_B = torch.arange(NUM_ROWS) // GROUP_SIZE
BY_ACTION = [
    {"name": "ppo"},
    {"name": "reinforce_plus_plus"},
    {"name": "grpo", "advantage": {"name": "optimal_token_baseline"}},
    {"name": "grpo", "kl": {"coef": 0.1, "place": "reward"}},
    {"name": "distillation", "teacher": "unused"},
]
BY_ROW = [
    *({"name": name} for name in ("grpo", "rloo", "opo", "gpg", "remax", "sft", "diffusion_nft")),
    {"name": "grpo", "advantage": {"name": "pass_at_k", "k": 2, "clamp": 0.3}},
    {"name": "grpo", "advantage": {"name": "gdpo"}},
    {"name": "grpo", "advantage": {"name": "reinforce_plus_plus_baseline"}},
    {"name": "dapo", "overlong": {"buffer": 8, "penalty": 0.5}},
    {"name": "rejection_sampling"},
]


@pytest.fixture
def fetches(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of tensors that the driver fetches, an entry per fetch."""
    monkeypatch.setattr(refs, "_get", refs._get)
    return count_fetches()


def build(block: dict[str, Any]) -> StageAlgorithm:
    cls, config = algorithms.resolve(block, "algorithm")
    return cls(config)


def rollout(algorithm: StageAlgorithm | None = None) -> DataProto:
    """Replies of several turns, one of them without actions; a row failed, and one was cut off.

    Args: algorithm: measured for it.
    """
    random = torch.Generator().manual_seed(0)

    def normal() -> torch.Tensor:
        return torch.randn(NUM_ROWS, NUM_TOKENS, generator=random)

    mask_BT = (torch.rand(NUM_ROWS, NUM_TOKENS, generator=random) < 0.7).long()
    mask_BT[4], mask_BT[8] = 0, 0
    failed_B = torch.arange(NUM_ROWS) == 4
    rewards_B = torch.rand(NUM_ROWS, generator=random)
    rewards_B[9:] = 0.5
    tensors = {
        "rewards": rewards_B,
        "failed": failed_B,
        "response_mask": mask_BT,
        "turn_rewards": normal() * mask_BT,
        "last_reply_tokens": mask_BT.sum(1),
        "greedy_rewards": torch.rand(NUM_ROWS, generator=random),
        "reward/a": rewards_B * 0.25,
        "reward/b": rewards_B.square(),
        "values": normal(),
        "old_log_probs": -normal().abs(),
        "sum_squared_probs": normal().abs(),
    }
    if algorithm is not None and algorithm.kl_in_reward:
        tensors["ref_log_probs"] = -normal().abs()
    if algorithm is not None and algorithm.needs_teacher:
        tensors["teacher_log_probs"] = -normal().abs()
    reasons = ["length" if row == 1 else "eos" for row in range(NUM_ROWS)]
    return DataProto.from_dict(tensors, {"stop_reason": reasons, "error": [None] * NUM_ROWS})


def by_reference(batch: DataProto) -> DataProtoRef:
    """The same rows as two ranks would have answered."""
    return DataProtoRef([store(batch[:5]), store(batch[5:])])


def of_the_whole_batch(algorithm: StageAlgorithm, batch: DataProto) -> torch.Tensor:
    """Advantages [B, T] by the algorithm's own `advantages`, zero in failed rows."""
    good_B = ~batch.tensor("failed")
    asked: dict[str, Any] = {}
    if algorithm.kl_in_reward:
        asked["ref_log_probs_BT"] = batch.tensor("ref_log_probs")[good_B]
    if algorithm.needs_teacher:
        asked["teacher_log_probs_BT"] = batch.tensor("teacher_log_probs")[good_B]
    found_BT, _ = algorithm.advantages(
        batch.tensor("rewards")[good_B],
        GROUPS_B[good_B],
        batch.tensor("response_mask")[good_B],
        rewards_BT=batch.tensor("turn_rewards")[good_B],
        values_BT=batch.tensor("values")[good_B],
        greedy_rewards_B=batch.tensor("greedy_rewards")[good_B],
        rewards_by_key={key: batch.tensor(f"reward/{key}")[good_B] for key in "ab"},
        log_probs_BT=batch.tensor("old_log_probs")[good_B],
        sum_squared_probs_BT=batch.tensor("sum_squared_probs")[good_B],
        **asked,
    )
    all_BT = torch.zeros(NUM_ROWS, NUM_TOKENS)
    all_BT[good_B] = found_BT.float()
    return all_BT


@pytest.mark.parametrize("block", BY_ROW, ids=str)
def test_whole_rows_need_nothing_by_action(block: dict[str, Any], fetches: list[int]) -> None:
    algorithm, plain = build(block), rollout()
    batch = by_reference(rollout())
    overlong = getattr(algorithm.config, "overlong", None)
    shape_overlong(batch, overlong, NUM_TOKENS)
    metrics = add_advantages(algorithm, batch, GROUPS_B)
    assert sum(fetches) == 0
    # What each of three ranks is sent is a few numbers a row.
    sent = [batch.shard(3, rank) for rank in range(3)]
    assert sum(len(pickle.dumps(shard.layers)) for shard in sent) < 9000
    assert not sum(fetches)

    shape_overlong(whole := by_reference(plain), overlong, NUM_TOKENS)
    expected_BT = of_the_whole_batch(algorithm, whole.fetch())
    trained = DataProto.concat([shard.fetch() for shard in sent])
    assert torch.equal(trained.tensor("advantages"), expected_BT)
    assert torch.equal(batch.tensor("advantages"), expected_BT)
    taught_B = expected_BT.any(1)
    assert torch.equal(trained.tensor("taught"), taught_B)
    good_B = ~plain.tensor("failed")
    assert metrics["zero_advantage_share"] == pytest.approx(
        1 - float(taught_B[good_B].float().mean())
    )
    assert metrics["failed_rows"] == 1.0


@pytest.mark.parametrize("block", BY_ROW, ids=str)
def test_rows_of_this_process_have_the_same_advantages(block: dict[str, Any]) -> None:
    algorithm, batch = build(block), rollout()
    add_advantages(algorithm, batch, GROUPS_B)
    assert torch.equal(batch.tensor("advantages"), of_the_whole_batch(algorithm, rollout()))


@pytest.mark.parametrize("block", BY_ACTION, ids=str)
def test_actions_that_differ_are_fetched(block: dict[str, Any], fetches: list[int]) -> None:
    algorithm = build(block)
    batch = by_reference(rollout(algorithm))
    add_advantages(algorithm, batch, GROUPS_B)
    assert sum(fetches) >= 12 * NUM_ROWS * NUM_TOKENS
    expected_BT = of_the_whole_batch(algorithm, rollout(algorithm))
    assert torch.equal(batch.tensor("advantages"), expected_BT)
    assert torch.equal(batch.tensor("taught"), batch.tensor("advantages").any(1))


class LengthGrpo(Grpo):
    """Somebody's algorithm, derived from one of ours, with advantages of its own."""

    def advantages(
        self,
        rewards_B: torch.Tensor,
        group_ids_B: torch.Tensor,
        mask_BT: torch.Tensor,
        **measured: Any,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        given: RowMeasures = measured  # pyright: ignore[reportAssignmentType]
        found_BT, metrics = super().advantages(rewards_B, group_ids_B, mask_BT, **given)
        return found_BT * mask_BT.cumsum(1), metrics


def test_an_algorithm_with_advantages_of_its_own_is_asked_for_them(fetches: list[int]) -> None:
    algorithm, batch = LengthGrpo(Grpo.Config()), by_reference(rollout())
    add_advantages(algorithm, batch, GROUPS_B)
    assert sum(fetches) > 0
    assert torch.equal(batch.tensor("advantages"), of_the_whole_batch(algorithm, rollout()))
    assert len(batch.tensor("advantages")[0].unique()) > 3


def test_actions_are_counted_where_rows_are_and_those_left_out_do_not_count(
    fetches: list[int],
) -> None:
    batch, plain_BT = by_reference(rollout()), rollout().tensor("response_mask")
    assert num_actions(batch).tolist() == plain_BT.sum(1).tolist()
    shape_overlong(batch, OverlongConfig(filter=True), NUM_TOKENS)
    greedy = DataProto.from_dict(
        {"failed": torch.tensor([False, False, True, False]), "rewards": torch.rand(4)},
        {"error": [None, None, "broken", None]},
    )
    add_greedy_rewards(batch, by_reference_of_one(greedy))
    expected = plain_BT.sum(1)
    expected[1] = expected[6:9] = 0
    assert num_actions(batch).tolist() == expected.tolist()
    assert sum(fetches) == 0
    assert batch.tensor("response_mask").sum(1).tolist() == expected.tolist()
    # A mask of the driver's own is counted as it is.
    batch.replace(DataProto.from_dict({"response_mask": torch.ones(NUM_ROWS, 2)}))
    assert num_actions(batch).tolist() == [2] * NUM_ROWS


def by_reference_of_one(batch: DataProto) -> DataProtoRef:
    return DataProtoRef([store(batch)])


def test_advantages_over_actions_are_zero_outside_of_them() -> None:
    mask_BT = torch.tensor([[1, 0, 1], [0, 0, 0]])
    found_BT = over_actions(mask_BT, torch.tensor([[2.0], [3.0]]))
    assert found_BT.tolist() == [[2.0, 0.0, 2.0], [0.0, 0.0, 0.0]]
