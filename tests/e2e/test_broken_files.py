"""Files that are not whole end a run within seconds, with one sentence and the code of a user's
error."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import Run

PROMPT_S = 90
"""Far beyond what a run takes to start its workers, and far below the limit of these tests."""


def test_a_model_without_its_weights_file_ends_the_run_at_once(
    start: Callable[..., Run], tiny_recipe: Path, tiny_model_dir: Path, tmp_path: Path
):
    model = shutil.copytree(tiny_model_dir, tmp_path / "half-a-model")
    (model / "model.safetensors").unlink()
    began = time.monotonic()
    run = start(tiny_recipe, tmp_path / "home", f"model.path={model}")
    assert run.finish() == 2, run.output
    assert time.monotonic() - began < PROMPT_S
    last = run.lines[-1]
    assert last.startswith(
        f"error: model.path {model}: cannot be loaded as a causal language model"
    ), run.output
    assert "Traceback" not in run.output


def test_a_truncated_checkpoint_is_set_aside_and_the_run_goes_on_from_the_one_before(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
):
    run = start(tiny_recipe, tmp_path / "home")
    run.wait_for("train-iteration 1: complete")
    run.kill()
    damaged = max((tmp_path / "home").glob("runs/*/checkpoints/iteration-*/policy/rank-0.pt"))
    damaged.write_bytes(damaged.read_bytes()[:1000])
    again = start(tiny_recipe, tmp_path / "home")
    assert again.finish() == 0, again.output
    assert f"the content of {damaged} has changed" in again.output.replace("\n", "")
    assert "training continues from iteration 0" in again.output
