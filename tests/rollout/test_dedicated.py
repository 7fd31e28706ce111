"""A whole text job whose rollouts come from an engine of its own: same loop, same learning, never
with old weights."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from rl_core.errors import StaleEngine, WorkerDied
from rl_core.train.weights.buckets import WeightVersion
from rl_core.trainers.domains.text import TextTrainer
from rl_core.trainers.track import prompt_batch
from schemas.recipe import Recipe
from tests.rollout.built import built, engine_of
from tests.rollout.vowels import DEDICATED, ITEMS, NUM_PROMPTS, NUM_SIBLINGS, NUM_STEPS, recipe

# The engine decodes token by token, the trainer reads whole rows, both in bfloat16
# (log-probabilities near -4.5).
BF16_TOLERANCE = 0.05


def running(settings: Recipe) -> AbstractContextManager[TextTrainer]:
    return built(TextTrainer(settings, settings.model.path, ITEMS))


SHARED_WEIGHTS: dict[str, Any] = {
    "placement": {
        "num_devices": 3,
        "rollout_devices": 1,
        "tp_size": 2,
        "threads_per_device": 1,
        "micro_batch_size": 8,
    }
}
TWO_RANKS = {"placement": SHARED_WEIGHTS["placement"] | {"tp_size": 1}}
LORA: dict[str, Any] = {"lora": {"rank": 4, "alpha": 8}}
AVERAGE: dict[str, Any] = {"ema_full": {"decay": 0.5, "mirror": True, "rollout": True}}


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("trained", "sync"),
    [
        (SHARED_WEIGHTS, {"transport": "broadcast", "bucket_bytes": 20_000, "content": "changes"}),
        (LORA, {"transport": "object_store"}),
        (TWO_RANKS, {"transport": "shards", "bucket_bytes": 20_000}),
    ],
    ids=["changes-tp2-broadcast", "lora-object-store", "shards"],
)
def test_the_engine_samples_from_the_weights_of_every_step(
    tiny_model_dir: Path, tmp_path: Path, trained: Any, sync: dict[str, Any]
):
    once = {"sync": sync, "engine_restarts": 0}
    with running(recipe(tiny_model_dir, rollout=once, **trained)) as trainer:
        assert len(set(trainer.pids())) == trainer.recipe.placement.num_devices
        versions = []
        for _ in range(NUM_STEPS):
            metrics, rollout = trainer.step()
            # What the engine said while sampling, beside the trainer's own forward pass over the
            # same tokens.
            assert 0.0 <= metrics["delta_log_prob_max"] < BF16_TOLERANCE
            assert metrics["seconds/sync"] > 0
            assert 0 < metrics["sync_share"] <= 1
            assert len(rollout) == NUM_PROMPTS * NUM_SIBLINGS
            versions.append(engine_of(trainer).weight_version())
            assert versions[-1] == trainer.backends()["policy"].weight_version()
        assert [version.number for version in versions] == [1, 2, 3]
        with pytest.raises(StaleEngine, match="with weights 4, the rollout engine holds weights 3"):
            engine_of(trainer).rollout(prompt_batch(ITEMS[:2]), 0, WeightVersion(4))
        with pytest.raises(StaleEngine, match="with weights 2, the rollout engine holds weights 3"):
            engine_of(trainer).evaluate(prompt_batch(ITEMS[:2]), 4, WeightVersion(2))
        trainer.save(str(tmp_path))
        trainer.load(str(tmp_path))
        engine_pid = trainer.pids()[0]
        os.kill(engine_pid, signal.SIGKILL)
        with pytest.raises(
            WorkerDied, match=rf"rank 0 \(DedicatedTextEngine-0\.\w+, pid {engine_pid}"
        ):
            trainer.sync_weights()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_in_float32_a_dedicated_engine_changes_nothing(tiny_model_dir: Path):
    exact = {"fsdp": {"param_dtype": "float32"}, **LORA}
    outcomes = []
    for dedicated in (False, True):
        sync = {"sync": {"dtype": "float32"}} if dedicated else {}
        with running(recipe(tiny_model_dir, dedicated=dedicated, rollout=sync, **exact)) as trainer:
            steps = [trainer.step() for _ in range(2)]
            said = [list(rollout.non_tensor_batch["response"]) for _, rollout in steps]
            greedy = list(trainer.evaluate(ITEMS[:3], 4).non_tensor_batch["response"])
            outcomes.append((said, greedy, trainer.backends()["policy"].full_state()[0]))
    (said, greedy, weights), (other_said, other_greedy, other_weights) = outcomes
    assert said == other_said
    assert greedy == other_greedy
    assert all(torch.equal(weight, other_weights[name]) for name, weight in weights.items())


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_trainer_that_is_offloaded_while_the_engine_samples_learns_the_same(
    tiny_model_dir: Path,
):
    outcomes = []
    for offload in (False, True):
        settings = recipe(tiny_model_dir)
        placed = settings.placement.model_copy(update={"offload": offload})
        with running(settings.model_copy(update={"placement": placed})) as trainer:
            steps = [trainer.step() for _ in range(2)]
            said = [list(rollout.non_tensor_batch["response"]) for _, rollout in steps]
            greedy = list(trainer.evaluate(ITEMS[:3], 4).non_tensor_batch["response"])
            backend = trainer.backends()["policy"]
            assert sum(backend.offload()) > 0, "it was not onloaded"
            backend.onload()
            freed = [metrics.get("offloaded_bytes") for metrics, _ in steps]
            outcomes.append((freed, said, greedy, backend.full_state()[0]))
    (nothing, *straight, weights), (freed, *parked, same) = outcomes
    assert nothing == [None, None]
    # The second step has an optimizer state, too.
    assert freed[1] > freed[0] > 0
    assert parked == straight
    assert all(torch.equal(weight, same[name]) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"dedicated": False}, "rollout.engine: in_process samples with them"),
        ({"rollout": {"steps_ahead": 1}}, "they train meanwhile; leave out one of them"),
    ],
)
def test_weights_that_are_needed_are_not_offloaded(
    tiny_model_dir: Path, changes: dict[str, Any], complaint: str
):
    values = recipe(tiny_model_dir, **changes).model_dump()
    values["placement"]["offload"] = True
    with pytest.raises(ValidationError, match=complaint):
        Recipe.model_validate(values)


@pytest.mark.parametrize(
    ("device", "apart", "offloads"), [("cuda", 0, True), ("cuda", 1, False), ("cpu", 0, False)]
)
def test_with_auto_a_trainer_is_offloaded_where_it_shares_a_gpu(
    tiny_model_dir: Path, device: str, apart: int, offloads: bool
):
    values = recipe(tiny_model_dir).model_dump()
    values["rollout"]["engine"] = "vllm"
    placed = {"num_devices": 2, "rollout_devices": apart, "workers_per_device": 2}
    values["placement"] |= {"device": device, **placed}
    assert not Recipe.model_validate(values).offloads, "nowhere unless asked for"
    values["placement"]["offload"] = "auto"
    assert Recipe.model_validate(values).offloads == offloads


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_resumed_run_syncs_before_its_first_rollout(tiny_model_dir: Path, tmp_path: Path):
    settings = recipe(tiny_model_dir, **LORA)
    with running(settings) as trainer:
        trainer.step()
        trainer.save(str(tmp_path))
        state = trainer.state_dict()
        _, straight = trainer.step()
        said = list(straight.non_tensor_batch["response"])
        with pytest.raises(StaleEngine):
            trainer.backends()["policy"].load(str(tmp_path / "policy"))
            engine_of(trainer).rollout(
                prompt_batch(ITEMS[:2]), 0, trainer.backends()["policy"].weight_version()
            )
    with running(settings) as resumed:
        assert engine_of(resumed).weight_version() is None
        resumed.load(str(tmp_path))
        resumed.load_state_dict(state)
        metrics, rollout = resumed.step()
        assert metrics["delta_log_prob_max"] < BF16_TOLERANCE
        assert list(rollout.non_tensor_batch["response"]) == said


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_rollouts_use_the_average_again_after_an_evaluation_of_the_weights(tiny_model_dir: Path):
    with running(recipe(tiny_model_dir, **AVERAGE)) as trainer:
        trainer.step()
        assert engine_of(trainer).weight_version() == WeightVersion(1, averaged=True)
        trainer.evaluate(ITEMS[:3], 4)
        # The average is lent to the evaluation, evaluated, and given back: two more changes of
        # weights.
        assert engine_of(trainer).weight_version() == WeightVersion(2)
        metrics, _ = trainer.step()
        assert engine_of(trainer).weight_version() == WeightVersion(4, averaged=True)
        assert metrics["delta_log_prob_max"] < BF16_TOLERANCE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"placement": {"num_devices": 2}},
            "rollout_devices is 0; with rollout.engine: dedicated it must be 1 or more",
        ),
        ({"placement": {"num_devices": 1, "rollout_devices": 1}}, "leaves none to train on"),
        ({"rollout": {"sync": {"mode": "adapter"}}}, "set lora, or use mode: full"),
        ({"rollout": {"sync": {"dtype": "float32"}}}, "finer than fsdp.param_dtype: bfloat16"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    tiny_model_dir: Path, changes: dict[str, Any], message: str
):
    with pytest.raises(ValidationError, match=message):
        recipe(tiny_model_dir, **changes)


def test_an_in_process_engine_has_no_devices_of_its_own(tiny_model_dir: Path):
    with pytest.raises(
        ValidationError, match=r"rollout_devices is 1; with rollout.engine: in_process it must be 0"
    ):
        recipe(tiny_model_dir, dedicated=False, placement=DEDICATED["placement"])
