"""Weights in flight: replies go on with newer weights, and a run that follows the order of another
learns the same."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from rl_core.envs import BaseTextEnvStepOutput
from rl_core.errors import RecipeError
from rl_core.runs.rollouts.orders import follow_orders, note_order, orders_of
from rl_core.train.weights.order import TOKEN_VERSIONS, Order, Taken
from rl_core.trainers.domains.text import TextTrainer
from schemas.recipe import Recipe
from tests.rollout.built import built
from tests.rollout.test_ahead import CORRECTED, EXACT, IN_FLOAT32
from tests.rollout.vowels import ITEMS, NUM_PROMPTS, VowelEnv, recipe

NUM_STEPS = 4
PAUSE_S = 1.0
"""Longer than a step of training the tiny model takes."""


class Slow(VowelEnv):
    """Pays in the second turn, before which weights have time to arrive."""

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__(env_config, extras)
        self.blow, self.num_turns = (extras or {})["reward_spec"]["ground_truth"], 0

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.num_turns += 1
        if self.num_turns == 2:
            return super().step(action)
        if self.blow and not Path(self.blow).exists():
            Path(self.blow).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(PAUSE_S)
        said = [{"role": "user", "content": "again"}]
        return BaseTextEnvStepOutput(observations=said, reward=0.0, done=False, metadata={})


def in_flight(model_dir: Path, **changes: Any) -> Recipe:
    training = {"steps_per_iteration": NUM_STEPS, "prompts_per_step": NUM_PROMPTS}
    rollout = {"steps_ahead": 2, "in_flight": True, "episodes": {"patience_s": 30}}
    rollout |= IN_FLOAT32 | changes.pop("rollout", {})
    settings = {"algorithm": CORRECTED, "training": training} | EXACT | changes
    return recipe(model_dir, rollout=rollout, **settings)


def items(blow: str = "") -> list[dict[str, Any]]:
    """Rows of `Slow`. Args: blow: file that the fifth row makes when it kills its engine."""
    rows = []
    for number, item in enumerate(ITEMS):
        spec = {"ground_truth": blow if number == 5 else ""}
        extras = {"env_class": f"{__name__}:Slow", "env_extras": {"reward_spec": spec}}
        rows.append(item | extras)
    return rows


def learnt(settings: Recipe, root: Path, *, blow: str = "") -> tuple[Any, list[Any], list[Any]]:
    """Return the weights after an iteration, and the metrics and rollouts of its steps. Orders are
    read from and noted in the folder, as a run does."""
    with built(TextTrainer(settings, settings.model.path, items(blow))) as trainer:
        follow_orders(trainer, root)
        metrics, rollouts = [], []
        for _ in range(NUM_STEPS):
            found, rollout = trainer.step()
            metrics.append(found)
            keys = [TOKEN_VERSIONS, "response_mask", "response", "rollout_log_probs"]
            rollouts.append(rollout.fetch(keys))
            if trainer.record.order is not None:
                note_order(root, trainer.step_count, trainer.record.order)
        return trainer.backends()["policy"].full_state()[0], metrics, rollouts


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("ranks", [1, 2])
def test_replies_go_on_with_newer_weights_and_their_order_can_be_followed(
    tiny_model_dir: Path, tmp_path: Path, ranks: int
):
    placement = {"num_devices": 1 + ranks, "rollout_devices": ranks, "threads_per_device": 1}
    settings = in_flight(tiny_model_dir, placement=placement | {"micro_batch_size": 8})
    weights, metrics, rollouts = learnt(settings, tmp_path)
    orders = orders_of(tmp_path)
    assert set(orders) == {2, 3, 4}
    assert all(set(order.ranks) == set(range(ranks)) for order in orders.values())
    within = [taken for order in orders.values() for some in order.ranks.values() for taken in some]
    assert any(taken.at for taken in within)
    for step, (found, rollout) in enumerate(zip(metrics, rollouts, strict=True), start=1):
        mask_BT = rollout.tensor("response_mask").bool()
        versions_BT = rollout.tensor(TOKEN_VERSIONS)
        for versions_T, mask_T in zip(versions_BT, mask_BT, strict=True):
            assert (versions_T[mask_T].diff() >= 0).all()
        if any(one.at for some in orders.get(step, Order({})).ranks.values() for one in some):
            assert len(versions_BT[mask_BT].unique()) > 1
            assert found["staleness_mean"] < found["staleness_max"]
        assert 0 <= found["staleness_mean"] <= found["staleness_max"] <= 2
    again, _, same = learnt(settings, tmp_path)
    assert orders_of(tmp_path) == orders
    for one, other in zip(rollouts, same, strict=True):
        assert list(one.non_tensor_batch["response"]) == list(other.non_tensor_batch["response"])
        assert torch.equal(one.tensor("rollout_log_probs"), other.tensor("rollout_log_probs"))
    assert all(torch.equal(weight, again[name]) for name, weight in weights.items())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_an_engine_that_dies_goes_on_with_the_weights_that_it_had(
    tiny_model_dir: Path, tmp_path: Path
):
    settings = in_flight(tiny_model_dir)
    _, metrics, _ = learnt(settings, tmp_path, blow=str(tmp_path / "struck"))
    assert (tmp_path / "struck").exists()
    assert sum(found.get("engine_restarts", 0.0) for found in metrics) == 1
    assert [found["staleness_max"] <= 2 for found in metrics] == [True] * NUM_STEPS


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_replies_to_agents_name_the_weights_that_drew_them(tiny_model_dir: Path, tmp_path: Path):
    agent = {"agent": "tests.rollout.agents.players:patient"}
    settings = in_flight(tiny_model_dir, environments={"agent": agent})
    rows = [item | {"env_class": "agent"} for item in ITEMS]
    with built(TextTrainer(settings, settings.model.path, rows)) as trainer:
        steps = [trainer.step() for _ in range(NUM_STEPS)]
        assert trainer.record.order is not None
        seen = []
        for _, rollout in steps:
            found = rollout.fetch([TOKEN_VERSIONS, "response_mask", "failed"])
            assert not found.tensor("failed").any()
            sampled_BT = found.tensor("response_mask").bool()
            seen.append(found.tensor(TOKEN_VERSIONS)[sampled_BT].unique().tolist())
    assert seen[0] == [0]
    assert any(len(versions) > 1 for versions in seen), seen


def test_orders_on_disk_survive_a_line_that_was_cut_off(tmp_path: Path):
    first = Order({0: (Taken(0, 1),), 1: (Taken(3, 1), Taken(9, 2))})
    note_order(tmp_path, 2, first)
    with (tmp_path / "orders.jsonl").open("a") as file:
        file.write('{"step": 3, "ranks": {"0"')
    note_order(tmp_path, 4, Order({0: ()}))
    assert orders_of(tmp_path) == {2: first, 4: Order({0: ()})}
    assert first.counted_from(1).counted_from(-1) == first


@pytest.mark.parametrize("text", [None, "", '{"step": 2}'])
def test_orders_that_are_not_there_are_named(
    tiny_model_dir: Path, tmp_path: Path, text: str | None
):
    path = tmp_path / "of-another-run.jsonl"
    if text is not None:
        path.write_text(text)
    settings = in_flight(tiny_model_dir, rollout={"orders": str(path)})
    with pytest.raises(RecipeError, match=r"rollout\.orders: .*of-another-run\.jsonl is no file"):
        trainer = TextTrainer(settings, settings.model.path, items())
        follow_orders(trainer, tmp_path, settings.rollout.orders)


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"steps_ahead": 0}, r"nothing is sampled while others train; set rollout.steps_ahead"),
        (
            {"engine": "in_process"},
            r"in_process samples with the weights that it trains; use dedicated",
        ),
        ({"sync": {"transport": "broadcast"}}, r"with rollout.in_flight use object_store"),
        ({"sync": {"transport": "shards"}}, r"transport: shards needs the engine to take part"),
        ({"router_replay": True}, r"not with rollout.router_replay: rows that are read again"),
        ({"in_flight": False, "orders": "o.jsonl"}, r"nothing to follow without rollout.in_flight"),
    ],
)
def test_settings_that_leave_nothing_to_renew_are_refused(
    tiny_model_dir: Path, rollout: dict[str, Any], message: str
):
    changes = {"dedicated": False} if rollout.get("engine") else {}
    with pytest.raises(ValidationError, match=message):
        in_flight(tiny_model_dir, rollout=rollout, **changes)
