"""vLLM's replies in several requests each: newer weights in between, and groups that are given up
or go on in the next step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_core.train.weights.order import TOKEN_VERSIONS
from rl_core.trainers.domains.text import TextTrainer
from schemas.recipe import Recipe
from tests.rollout.built import built
from tests.rollout.in_flight_parts import CHANGES, ROLLOUT, check_in_flight
from tests.rollout.test_ahead import CORRECTED
from tests.rollout.test_dedicated import ITEMS, NUM_SIBLINGS
from tests.rollout.vllm_parts import CONTEXT, ON_VLLM, TOLERANCE, make_model, recipe

pytestmark = ON_VLLM


@pytest.fixture(scope="module")
def model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tiny_model_dir, tmp_path_factory.mktemp("in_flight") / "model")


def settings(model_dir: Path, rollout: dict[str, Any], **changes: Any) -> Recipe:
    rollout = {
        "engine": "vllm",
        "samples_per_prompt": NUM_SIBLINGS,
        "max_new_tokens": 12,
        "max_context_length": CONTEXT,
        "sync": {"dtype": "float32", "bucket_bytes": 20_000},
        "vllm": {"kv_cache_gib": 0.125},
    } | rollout
    placement = {"num_devices": 2, "rollout_devices": 1, "threads_per_device": 1}
    placement |= {"micro_batch_size": 8}
    return recipe(model_dir, rollout=rollout, placement=placement, **changes)


def test_each_token_is_of_the_weights_that_it_names(model_dir: Path, tmp_path: Path):
    check_in_flight(TextTrainer, settings(model_dir, ROLLOUT, **CHANGES), tmp_path)


def test_groups_go_on_in_the_next_step(model_dir: Path):
    prompts = len(ITEMS) // 2
    rollout = {"extra_prompts": 2, "carry_over": 1, "tokens_per_request": 4, "top_k": 30}
    training = {"steps_per_iteration": 3, "prompts_per_step": prompts}
    given = settings(model_dir, rollout, algorithm=CORRECTED, training=training)
    with built(TextTrainer(given, given.model.path, ITEMS)) as trainer:
        carried, ages = [], []
        for step in range(1, 4):
            metrics, rollout = trainer.step()
            assert len(rollout) == prompts * NUM_SIBLINGS
            carried.append(metrics["carried_groups"])
            found = rollout.fetch([TOKEN_VERSIONS, "response_mask"])
            drawn_BT = found.tensor("response_mask").bool()
            versions = found.tensor(TOKEN_VERSIONS)[drawn_BT].unique().tolist()
            ages.append(step - 1 - min(versions))
            if versions == [step - 1]:
                assert metrics["delta_log_prob_max"] < TOLERANCE
    assert carried[0] > 0 and carried[-1] == 0
    assert max(ages) == 1
