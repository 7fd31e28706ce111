"""Prompts beyond those of a step: the groups that end first are trained on, the others are given
up, and a resumed run gives up the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flows.dry_run import check_turns
from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.errors import RecipeError
from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.decoding.request import Reply, Request, StopReason
from rl_core.ranks.dispatch import Collect, Dispatch, distributed
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.engine import RolloutEngine
from rl_core.rollout.episodes.loop import run_episodes
from rl_core.runtime.home import Home
from rl_core.trainers.domains.text import TextTrainer
from rl_core.trainers.wiring import _chosen_engine
from schemas.recipe import Recipe
from tasks.prepare_cache import _prepare_prompts
from tests.rollout.built import built
from tests.rollout.vowels import ITEMS, NUM_PROMPTS, NUM_SIBLINGS, recipe

HERE = "tests.rollout.test_extra_prompts"
closed: list[str] = []


class CountedEnv(BaseTextEnv):
    """Pays one, and remembers that it was closed. The row `refused` fails at its start."""

    def init(self, prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        if prompt[0]["content"] == "refused":
            raise ValueError("no such row")
        self.prompt = prompt[0]["content"]
        return prompt, {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(observations=[], reward=1.0, done=True, metadata={})

    def close(self) -> None:
        closed.append(getattr(self, "prompt", "refused"))


def items(*texts: str) -> list[Any]:
    return [
        {
            "uid": text,
            "prompt": [{"role": "user", "content": text}],
            "env_class": f"{HERE}:CountedEnv",
            "env_extras": {"reward_spec": {"ground_truth": ""}},
        }
        for text in texts
    ]


def played(
    model_dir: Path, texts: tuple[str, ...], slow: tuple[str, ...], num_kept: int
) -> tuple[list[tuple[str, bool, bool]], list[int | None]]:
    """Play two siblings of each text; the first reply to a slow one is given up if enough others
    have ended. Returns: uid, whether it was given up and whether it failed; and the numbers that
    decoding was given."""
    closed.clear()
    chat = ChatFormat(load_tokenizer(str(model_dir)), {})
    wanted: list[int | None] = []

    def generate(requests: list[Request], enough: int | None = None) -> list[Reply]:
        wanted.append(enough)
        replies = []
        for request in requests:
            text = chat.tokenizer.decode(request.token_ids)
            late = enough is not None and any(one in text for one in slow)
            reasons = [StopReason.GIVEN_UP if late else StopReason.EOS, StopReason.EOS]
            for reason in reasons[: request.num_replies]:
                replies.append(Reply([5, 6], [-1.0, -1.0], reason))
        return replies

    episodes = run_episodes(items(*texts), 2, chat, generate, {}, 512, num_kept=num_kept)
    found = [(one.item["uid"], one.given_up, not one.has_verdict) for one in episodes]
    assert found[::2] == found[1::2], "siblings share their lot"
    assert len(closed) == 2 * len(texts), "every one is closed"
    return found[::2], wanted


def test_of_the_groups_that_ended_the_first_are_kept_in_the_order_of_the_prompts(
    tiny_model_dir: Path,
) -> None:
    found, wanted = played(tiny_model_dir, ("a1", "b2", "c3", "d4"), ("b2",), 2)
    assert wanted == [2]
    assert found == [
        ("a1", False, False),
        ("b2", True, False),
        ("c3", False, False),
        ("d4", True, False),
    ]


def test_a_group_that_failed_at_its_start_is_the_last_to_be_kept(tiny_model_dir: Path) -> None:
    found, _ = played(tiny_model_dir, ("refused", "b2", "c3"), (), 2)
    assert [given_up for _, given_up, _ in found] == [True, False, False]
    found, wanted = played(tiny_model_dir, ("refused", "b2"), (), 2)
    assert wanted == [1], "there is one group to wait for"
    assert found == [("refused", False, True), ("b2", False, False)]


def racing(model_dir: Path, extra_prompts: int, **changes: Any) -> Recipe:
    """The tiny job, whose replies have very different lengths."""
    rollout = {"extra_prompts": extra_prompts, "max_new_tokens": 24} | changes.pop("rollout", {})
    training = {"num_iterations": 2, "steps_per_iteration": 2, "prompts_per_step": NUM_PROMPTS}
    exact = {"fsdp": {"param_dtype": "float32"}}
    return recipe(
        model_dir, dedicated=False, rollout=rollout, training=training, **exact, **changes
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_step_trains_on_as_many_groups_as_ever_and_a_resumed_run_on_the_same(
    tiny_model_dir: Path, tmp_path: Path, num_devices: int
) -> None:
    placement = {"num_devices": num_devices, "threads_per_device": 1, "micro_batch_size": 8}
    settings = racing(tiny_model_dir, 4, placement=placement)
    source = settings.model.path

    def step(trainer: TextTrainer) -> tuple[list[str], dict[str, float]]:
        metrics, rollout = trainer.step()
        assert len(rollout) == NUM_PROMPTS * NUM_SIBLINGS
        groups = rollout.non_tensor_batch["group_id"].tolist()
        assert all(groups.count(group) == NUM_SIBLINGS for group in groups)
        assert "given_up" not in set(rollout.non_tensor_batch["stop_reason"])
        assert metrics["given_up_groups"] == 4
        assert metrics["given_up_tokens"] >= 4
        return groups, metrics

    with built(TextTrainer(settings, source, ITEMS)) as trainer:
        before = [step(trainer) for _ in range(2)]
        trainer.save(str(tmp_path))
        state = trainer.state_dict()
        after = [step(trainer) for _ in range(2)]
    assert len({tuple(groups) for groups, _ in before + after}) > 1, "others end first each time"
    with built(TextTrainer(settings, source, ITEMS)) as trainer:
        trainer.load(str(tmp_path))
        trainer.load_state_dict(state)
        again = [step(trainer) for _ in range(2)]
    for (groups, metrics), (same_groups, same_metrics) in zip(after, again, strict=True):
        assert groups == same_groups
        assert metrics["loss"] == same_metrics["loss"]
        assert metrics["given_up_tokens"] == same_metrics["given_up_tokens"]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_the_greedy_baseline_is_of_the_prompts_that_were_kept(tiny_model_dir: Path) -> None:
    settings = racing(tiny_model_dir, 4, algorithm={"name": "remax"})
    with built(TextTrainer(settings, settings.model.path, ITEMS)) as trainer:
        metrics, rollout = trainer.step()
    assert metrics["given_up_groups"] == 4
    assert len(rollout.tensor("greedy_rewards")) == NUM_PROMPTS * NUM_SIBLINGS
    assert torch.isfinite(torch.tensor(metrics["loss"]))


class OtherEngine:
    """An engine of somebody's own, which samples every prompt that it is given."""

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def rollout(self, prompts: Any, *options: object) -> None:
        """Sample."""

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def evaluate(self, prompts: Any, *options: object) -> None:
        """Sample."""


def test_an_engine_that_gives_up_nothing_is_refused_before_its_workers_start(
    tiny_model_dir: Path,
) -> None:
    settings = racing(tiny_model_dir, 4, engine={"target": f"{HERE}:OtherEngine"})
    with pytest.raises(RecipeError, match=r"extra_prompts: engine OtherEngine gives up no groups"):
        _chosen_engine(settings, RolloutEngine)
    usual = _chosen_engine(racing(tiny_model_dir, 4), RolloutEngine)
    assert usual == (RolloutEngine, {})


def test_agents_are_refused_in_the_plan_and_in_the_preparation(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    environments = {"mine": {"agent": "my_agent:play"}}
    settings = racing(tiny_model_dir, 4, environments=environments)
    message = r"extra_prompts: the episodes of an agent \(mine\) are never given up"
    with pytest.raises(RecipeError, match=message):
        check_turns(settings, Home(tmp_path))
    with pytest.raises(RecipeError, match=message):
        _prepare_prompts(settings, Home(tmp_path))
