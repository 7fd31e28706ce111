"""Files that are not whole, and a folder that two runs want."""

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
        f"error: model.path {model}: the folder has a config.json but no weights"
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


def test_a_second_run_of_the_same_recipe_waits_for_the_first_and_finds_it_done(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
):
    first = start(tiny_recipe, tmp_path / "home")
    first.wait_for("train-iteration 1: complete")
    second = start(tiny_recipe, tmp_path / "home")
    second.wait_for("waiting for process")
    assert first.finish() == 0, first.output
    assert second.finish() == 0, second.output
    folders = [path for path in (tmp_path / "home" / "runs").iterdir() if path.is_dir()]
    assert len(folders) == 1
    receipts = [path.name for path in (folders[0] / "receipts").iterdir()]
    assert "register-model.json" in receipts
    assert not list(folders[0].glob("checkpoints/.build-*"))
