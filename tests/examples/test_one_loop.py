"""The loop in one file learns what the trainer learns, and its command runs."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from examples.one_loop import OneLoop
from rl_core.kernels.float32_matmul import widen_products
from rl_core.ranks.rank_info import RankInfo
from rl_core.trainers.domains.text import TextTrainer
from schemas.recipe import Recipe
from tests.rollout.built import built
from tests.rollout.vowels import ITEMS, NUM_STEPS, recipe
from tests.train.ranks import Ranks
from tests.trainers.test_algorithms import items as letter_items

ROOT = Path(__file__).parents[2]
PLACED = {"num_devices": 1, "threads_per_device": 1, "micro_batch_size": 6}


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks() as started:
        yield started


def one_loop(
    rank_info: RankInfo, settings: Recipe, rows: list[dict[str, Any]]
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Its weights after all steps, and the metrics of each."""
    widen_products()
    loop = OneLoop(settings, settings.model.path, rows, rank_info)
    metrics = [loop.step() for _ in range(NUM_STEPS)]
    return loop.backend.full_state(), metrics


def assert_same(settings: Recipe, rows: list[dict[str, Any]], ranks: Ranks) -> list[float]:
    """Both ways to the same weights by the same metrics. Returns: norms of the steps' gradients."""
    with built(TextTrainer(settings, settings.model.path, rows)) as trainer:
        (backend,) = trainer.backends().values()
        start = backend.full_state()[0]
        metrics = [trainer.step()[0] for _ in range(NUM_STEPS)]
        theirs = backend.full_state()[0]
    assert any(not torch.equal(start[name], value) for name, value in theirs.items())
    ((ours, measured),) = ranks.run(1, one_loop, settings, rows)
    for step, of_trainer in zip(measured, metrics, strict=True):
        assert step == {name: of_trainer[name] for name in step}
    assert ours.keys() == theirs.keys()
    differing = [name for name, value in theirs.items() if not torch.equal(value, ours[name])]
    assert not differing
    return [step["grad_norm"] for step in measured]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="bfloat16"),
        pytest.param({"fsdp": {"param_dtype": "float32"}}, id="float32"),
        pytest.param({"lora": {"rank": 4, "alpha": 8}}, id="lora"),
    ],
)
def test_it_ends_with_the_trainers_weights_bit_for_bit(
    tiny_model_dir: Path, ranks: Ranks, changes: dict[str, Any]
) -> None:
    settings = recipe(tiny_model_dir, dedicated=False, placement=PLACED, **changes)
    assert all(assert_same(settings, ITEMS, ranks))


@pytest.mark.usefixtures("ray_cluster")
def test_so_it_does_where_the_replies_of_a_step_are_all_alike(
    tiny_model_dir: Path, ranks: Ranks
) -> None:
    settings = recipe(tiny_model_dir, dedicated=False, placement=PLACED)
    # Of eight prompts only one has replies that differ in reward; a step has four.
    rows = letter_items(len(ITEMS), flat_every=len(ITEMS))
    norms = assert_same(settings, rows, ranks)
    assert 0.0 in norms and any(norms)


@pytest.mark.slow
@pytest.mark.long
def test_the_command_trains(tiny_model_dir: Path) -> None:
    command = [sys.executable, "-m", "examples.one_loop", "--model", str(tiny_model_dir)]
    sizes = ["--steps", "2", "--prompts", "2", "--samples", "2"]
    said = subprocess.run([*command, *sizes], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stderr
    steps = said.stdout.splitlines()
    assert [line.split("  ")[0] for line in steps] == ["step 1", "step 2"]
    assert all(
        re.search(r"reward_mean \S+  .*loss \S+  grad_norm \S+  lr \S+", line) for line in steps
    )


def test_it_fits_on_a_few_screens() -> None:
    text = (ROOT / "examples" / "one_loop.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
