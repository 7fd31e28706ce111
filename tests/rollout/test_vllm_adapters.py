"""Adapters that vLLM loads beside their base, for real on a CPU: only they are sent, and it says
what the trainer says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_core.errors import RecipeError, WeightMismatch
from schemas.recipe import Recipe
from schemas.sections.sampling import SamplingConfig
from tests.rollout.built import engine_of
from tests.rollout.vllm_parts import (
    ON_VLLM,
    TOLERANCE,
    AskedTrainer,
    agree,
    distance,
    make_model,
    recipe,
    requests,
    running,
    sampling,
    tokens,
)

pytestmark = ON_VLLM
RANK = 4
SIDES = {
    "q_proj": (64, 64),
    "k_proj": (64, 32),
    "v_proj": (64, 32),
    "o_proj": (64, 64),
    "gate_proj": (64, 96),
    "up_proj": (64, 96),
    "down_proj": (96, 64),
}
"""Sizes of the layers of `make_model` that carry adapters."""
A, B = (
    f"model.base_model.model.model.layers.1.mlp.up_proj.lora_{one}.default.weight" for one in "AB"
)


def adapted(folder: Path, devices_per_server: int = 1, **lora: Any) -> Recipe:
    values = recipe(folder).model_dump(mode="json", by_alias=True)
    values["lora"] = {"rank": RANK, "alpha": 8} | lora
    values["rollout"]["sync"]["mode"] = "adapter"
    values["rollout"]["vllm"]["tensor_parallel_size"] = devices_per_server
    return Recipe.model_validate(values)


@pytest.fixture(scope="module")
def model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tiny_model_dir, tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(
    scope="module",
    params=[(1, None), (2, ["q_proj", "up_proj"])],
    ids=["two servers", "a server on two devices, two layers of seven"],
)
def trainer(
    ray_cluster: None, model_dir: Path, request: pytest.FixtureRequest
) -> Iterator[AskedTrainer]:
    size, targets = request.param
    with running(adapted(model_dir, size, target_modules=targets)) as trainer:
        trainer.sync_weights()
        yield trainer


# The first, since the others keep the devices.
def test_a_rank_that_vllm_does_not_know_is_refused(model_dir: Path):
    with (
        pytest.raises(RecipeError, match=r"lora.rank: 600: .* ranks up to 512; lower it, or use"),
        running(adapted(model_dir, rank=600)),
    ):
        pass


def test_each_step_samples_with_the_adapters_of_the_one_before(trainer: AskedTrainer):
    said = [agree(trainer)]
    for _ in range(3):
        metrics, _ = trainer.step()
        assert 0.0 <= metrics["delta_log_prob_max"] < TOLERANCE
        said.append(agree(trainer))
    assert said[0] != said[-1]
    # The adapters alone, of each of two blocks.
    targets = trainer.recipe.lora.target_modules or SIDES
    numbers = 2 * RANK * sum(sum(SIDES[target]) for target in targets)
    assert metrics["sync_bytes"] == 4 * numbers


def test_requests_that_come_one_by_one_are_answered_with_the_adapters(trainer: AskedTrainer):
    asked = [replace(one, seed=seed) for seed, one in enumerate(requests())]
    drawn = replace(sampling(12), choice=SamplingConfig(top_k=5), records_support=True)
    together = engine_of(trainer).ask(asked, drawn, 0)[0]
    apart = engine_of(trainer).ask_one_by_one(asked, drawn)[0]
    assert tokens(apart) == tokens(together)
    expected = engine_of(trainer).follow(asked, together, drawn)[0]
    scores = ([one.log_probs for one in some] for some in (together, expected))
    assert distance(*scores) < TOLERANCE


@pytest.mark.parametrize("parameter", [A, B])
def test_one_tampered_bit_of_an_adapter_is_caught(trainer: AskedTrainer, parameter: str):
    engine_of(trainer).tamper(parameter)
    with pytest.raises(WeightMismatch, match=r"1 of \d+ tensors differ .*up_proj.lora_[AB].weight"):
        trainer.step()
    engine_of(trainer).tamper(None)
    trainer.sync_weights()
    agree(trainer)
