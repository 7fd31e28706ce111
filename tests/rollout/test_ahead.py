"""Rollouts that are started a step ahead: beside training, one step old, and never past a
checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from rl_core.algorithms import algorithms
from rl_core.algorithms.presets import Grpo
from rl_core.algorithms.requirements.trainers import check_serves_tokens
from rl_core.data.order.source_of_recipe import training_source
from rl_core.envs import BaseTextEnvStepOutput
from rl_core.errors import RecipeError
from rl_core.trainers.domains.text import TextTrainer
from schemas.recipe import Recipe
from tests.rollout.built import built
from tests.rollout.vowels import ITEMS, NUM_PROMPTS, VowelEnv, recipe

CORRECTED: dict[str, Any] = {"name": "grpo", "correction": {"level": "token", "upper": 2.0}}
EXACT: dict[str, Any] = {"fsdp": {"param_dtype": "float32"}}
IN_FLOAT32: dict[str, Any] = {"sync": {"dtype": "float32"}}
PATIENCE_S = 120


def ahead(model_dir: Path, *, steps_ahead: int = 1, num_steps: int = 3, **changes: Any) -> Recipe:
    training = {
        "num_iterations": 2,
        "steps_per_iteration": num_steps,
        "prompts_per_step": NUM_PROMPTS,
    }
    settings = {"algorithm": CORRECTED, "training": training} | EXACT | changes
    return recipe(model_dir, rollout=IN_FLOAT32 | {"steps_ahead": steps_ahead}, **settings)


@contextmanager
def running(settings: Recipe, items: list[dict[str, Any]] = ITEMS) -> Iterator[TextTrainer]:
    with built(TextTrainer(settings, settings.model.path, items)) as trainer:
        yield trainer


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_rollout_is_one_step_old_and_none_is_started_ahead_of_a_checkpoint(tiny_model_dir: Path):
    with running(ahead(tiny_model_dir)) as trainer:
        steps = [trainer.step()[0] for _ in range(6)]
    # Three steps to a checkpoint: the first of them is sampled with the latest weights, the others
    # are one step old.
    assert [step.get("staleness") for step in steps] == [None, 1.0, 1.0, None, 1.0, 1.0]
    for step in steps:
        is_stale = "staleness" in step
        assert ("rollout_tokens_per_second" in step) is not is_stale
        # Both sides compute in float32: what is left between their log-probabilities is the step of
        # the weights.
        assert (step["delta_log_prob_max"] > 1e-3) is is_stale
        assert (abs(step["correction_weight"] - 1) > 1e-5) is is_stale


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_with_weights_that_stand_still_it_samples_what_the_turns_sample(tiny_model_dir: Path):
    said = []
    for steps_ahead in (0, 1):
        settings = ahead(
            tiny_model_dir, steps_ahead=steps_ahead, optimizer={"learning_rate": 1e-30}
        )
        with running(settings) as trainer:
            said.append([list(trainer.step()[1].non_tensor_batch["response"]) for _ in range(3)])
    assert said[0] == said[1]
    assert len({tuple(step) for step in said[1]}) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_several_steps_ahead_are_as_many_old_and_a_resumed_run_learns_the_same(
    tiny_model_dir: Path, tmp_path: Path
):
    settings = ahead(tiny_model_dir, steps_ahead=3, num_steps=5)
    with running(settings) as trainer:
        steps = [trainer.step()[0] for _ in range(5)]
        trainer.save(str(tmp_path))
        state = trainer.state_dict()
        steps += [trainer.step()[0] for _ in range(5)]
        straight = trainer.backends()["policy"].full_state()[0]
    # Full from the second step of an iteration on, and none is older than asked for.
    assert [step["staleness_max"] for step in steps] == [0.0, 1.0, 2.0, 3.0, 3.0] * 2
    assert [step["staleness_mean"] for step in steps] == [0.0, 1.0, 2.0, 3.0, 3.0] * 2
    with running(settings) as resumed:
        resumed.load(str(tmp_path))
        resumed.load_state_dict(state)
        for _ in range(5):
            resumed.step()
        again = resumed.backends()["policy"].full_state()[0]
    assert all(torch.equal(weight, again[name]) for name, weight in straight.items())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_resumed_run_learns_what_an_unbroken_one_learns(tiny_model_dir: Path, tmp_path: Path):
    settings = ahead(tiny_model_dir, num_steps=2)
    with running(settings) as trainer:
        trainer.step()
        trainer.step()
        trainer.save(str(tmp_path))
        state = trainer.state_dict()
        trainer.step()
        trainer.step()
        straight = trainer.backends()["policy"].full_state()[0]
    with running(settings) as resumed:
        resumed.load(str(tmp_path))
        resumed.load_state_dict(state)
        resumed.step()
        resumed.step()
        again = resumed.backends()["policy"].full_state()[0]
    assert all(torch.equal(weight, again[name]) for name, weight in straight.items())


class Announcing(Grpo):
    """Says that it trains, by a file."""

    class Config(Grpo.Config):
        """GRPO's, and where the file is to be."""

        told: str

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        Path(self.config.told).touch()
        return super().loss(*args, **kwargs)


class AfterTraining(VowelEnv):
    """Judges only once training has begun, which it never does while rollouts come first."""

    def step(self, action: str) -> BaseTextEnvStepOutput:
        told, deadline = Path(self.told), time.monotonic() + PATIENCE_S
        while self.waits and not told.exists():
            assert time.monotonic() < deadline, "nothing trained while this was sampled"
            time.sleep(0.05)
        return super().step(action)

    def __init__(
        self, env_config: dict[str, Any] | None = None, extras: dict[str, Any] | None = None
    ) -> None:
        super().__init__(env_config, extras)
        said = (extras or {})["reward_spec"]["ground_truth"]
        self.waits, self.told = bool(said), said


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_sampling_and_training_go_on_at_the_same_time(tiny_model_dir: Path, tmp_path: Path):
    told = tmp_path / "trains"
    announcing = {"name": None, "target": f"{__name__}:Announcing", "told": str(told)}
    settings = ahead(tiny_model_dir, algorithm=CORRECTED | announcing)
    source = training_source(ITEMS, NUM_PROMPTS, settings.seed, None, None)
    first, second = ({item["uid"] for item in source.next_batch()} for _ in range(2))
    assert first.isdisjoint(second)
    items = [
        item
        | {
            "env_class": f"{__name__}:AfterTraining",
            "env_extras": {
                "reward_spec": {"ground_truth": "" if item["uid"] in first else str(told)}
            },
        }
        for item in ITEMS
    ]
    with running(settings, items) as trainer:
        trainer.step()
        _, rollout = trainer.step()
        assert not rollout.tensor("failed").any()
        assert second == set(rollout.non_tensor_batch["uid"].tolist())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"dedicated": False, "placement": {"num_devices": 2}},
            r"rollout.steps_ahead: 1 samples while others train: set rollout.engine: dedicated",
        ),
        (
            {"training": {"steps_per_iteration": 1, "prompts_per_step": NUM_PROMPTS}},
            r"no effect with training.steps_per_iteration: 1",
        ),
        (
            {"steps_ahead": 2, "sync": {"transport": "broadcast"}},
            r"makes the trainer wait until the engine takes part, after 2 rollouts",
        ),
    ],
)
def test_settings_that_leave_nothing_to_overlap_are_refused(
    tiny_model_dir: Path, changes: dict[str, Any], message: str
):
    rollout = {"steps_ahead": 1}
    rollout |= {key: changes.pop(key) for key in ("steps_ahead", "sync") if key in changes}
    with pytest.raises(ValidationError, match=message):
        recipe(tiny_model_dir, rollout=rollout, **changes)


def test_an_algorithm_that_does_not_correct_for_older_weights_is_refused(tiny_model_dir: Path):
    settings = ahead(tiny_model_dir, algorithm={"name": "grpo"})
    algorithm_cls, config = algorithms.resolve(settings.algorithm, "algorithm")
    with pytest.raises(
        RecipeError, match=r"algorithm grpo does not correct for: set algorithm.correction"
    ):
        check_serves_tokens(algorithm_cls(config), settings)
