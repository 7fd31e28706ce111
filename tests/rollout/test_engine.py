"""The rows that an engine gives of its episodes: nothing is learnt from a row whose environment
failed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, register
from rl_core.envs import registration as registration_module
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.engine import RolloutEngine
from rl_core.trainers.track import prompt_batch
from schemas.sections.rollout import RolloutConfig
from tests.train.jobs import Setup, make_backend

NUM_SIBLINGS = 2


class Moody(BaseTextEnv):
    """Pays one for every turn of two, or fails at the turn that the row names."""

    def __init__(
        self, env_config: dict[str, Any] | None = None, extras: dict[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.fails_at = (extras or {})["reward_spec"]["ground_truth"]

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        if self.turns == self.fails_at:
            raise ValueError("broken")
        observations = [] if self.turns == 2 else [{"role": "user", "content": "go on"}]
        return BaseTextEnvStepOutput(
            observations=observations, reward=1.0, done=self.turns == 2, metadata={}
        )


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.fixture
def engine(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> RolloutEngine:
    monkeypatch.setattr(registration_module, "_specs", {})
    register("moody", Moody)
    backend = make_backend(RankInfo(0, 1, "cpu", 1), Setup(str(tiny_model_dir)))
    return RolloutEngine(
        backend, RolloutConfig(samples_per_prompt=NUM_SIBLINGS, max_new_tokens=6), {}, {}, 0
    )


def rows(*fails_at: int) -> Any:
    """A prompt for each, with the turn at which its environment fails; 0: never."""
    said = [{"role": "user", "content": "hello"}]
    return prompt_batch(
        [
            {
                "uid": f"row-{number}",
                "prompt": said,
                "env_class": "moody",
                "env_extras": {"reward_spec": {"ground_truth": turn}},
            }
            for number, turn in enumerate(fails_at)
        ]
    )


def test_a_row_whose_environment_failed_has_no_action_to_learn_from(engine: RolloutEngine) -> None:
    for batch in (engine.rollout(rows(0, 1, 2), 0), engine.evaluate(rows(0, 1, 2), 6)):
        assert batch is not None
        group_size = len(batch) // 3
        failed = torch.tensor([False, True, True]).repeat_interleave(group_size)
        assert torch.equal(batch.tensor("failed"), failed)
        mask_BT = batch.tensor("response_mask")
        assert mask_BT[failed].count_nonzero() == 0
        assert bool((mask_BT[~failed].sum(1) > 0).all()), "the other rows are trained on"
        # What was said before the failure is there to be read, and is counted.
        attention_BT = batch.tensor("attention_mask")[:, -mask_BT.shape[1] :]
        assert bool((attention_BT[failed].sum(1) > 0).all())
        assert bool((batch.tensor("num_tokens")[failed] > 0).all())
        assert [error is None for error in batch.non_tensor_batch["error"]] == (~failed).tolist()


def test_the_mask_of_a_row_covers_what_the_policy_said_and_nothing_else(
    engine: RolloutEngine,
) -> None:
    batch = engine.rollout(rows(0), 0)
    assert batch is not None
    mask_BT, log_probs_BT = batch.tensor("response_mask"), batch.tensor("rollout_log_probs")
    assert torch.equal(mask_BT.sum(1), batch.tensor("num_tokens"))
    assert (
        bool((log_probs_BT[mask_BT == 1] < 0).all())
        and log_probs_BT[mask_BT == 0].count_nonzero() == 0
    )
    # Between two replies stands what the environment said.
    said = (batch.tensor("attention_mask")[:, -mask_BT.shape[1] :] - mask_BT).sum(1)
    assert bool((said > 0).all()) and batch.tensor("num_turns").tolist() == [2] * NUM_SIBLINGS


def test_rows_carry_the_names_of_their_group_and_sample(engine: RolloutEngine) -> None:
    batch = engine.rollout(rows(0, 1), 0)
    assert batch is not None
    columns = batch.non_tensor_batch
    assert columns["group_id"].tolist() == ["row-0", "row-0", "row-1", "row-1"]
    assert columns["sample_id"].tolist() == [
        f"prompt:row-{row}:sample:{sibling}" for row in range(2) for sibling in range(2)
    ]


def test_prompts_are_padded_on_the_left_to_the_longest(engine: RolloutEngine) -> None:
    prompts = rows(0, 0)
    prompts.non_tensor_batch["item"][1]["prompt"] = [{"role": "user", "content": "hello " * 5}]
    batch = engine.rollout(prompts, 0)
    assert batch is not None
    width = batch.tensor("input_ids").shape[1] - batch.tensor("response_mask").shape[1]
    ids_BP, mask_BP = (batch.tensor(name)[:, :width] for name in ("input_ids", "attention_mask"))
    assert mask_BP.sum(1).tolist()[-NUM_SIBLINGS:] == [width] * NUM_SIBLINGS, "the longest fits"
    num_pads = width - int(mask_BP[0].sum())
    assert num_pads > 0
    assert mask_BP[0].tolist() == [0] * num_pads + [1] * (width - num_pads)
    assert set(ids_BP[0, :num_pads].tolist()) == {engine.tokenizer.pad_token_id}
