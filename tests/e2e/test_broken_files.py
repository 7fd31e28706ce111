"""Files that are not whole."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_core.errors import NoSignal
from rl_core.trainers.progress import ProgressEvent, listeners
from tests.e2e.conftest import Run, train_here
from tests.e2e.outcomes import run_folder

PROMPT_S = 90
"""Far beyond what a run takes to start its workers, and far below the limit of these tests."""


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_truncated_checkpoint_is_set_aside_and_the_run_goes_on_from_the_one_before(
    tiny_recipe: Path, tmp_path: Path, ray_cluster: None, monkeypatch: pytest.MonkeyPatch
):
    """The run ended before because its recipe has it stop when nothing can be learnt."""
    short = (
        # A random model earns nothing without partial credit.
        "environments.reasoning_gym.partial_credit=false",
        "training.num_iterations=2",
        "training.steps_per_iteration=1",
        "training.no_signal_steps=2",
    )
    with pytest.raises(NoSignal) as caught:
        train_here(tiny_recipe, tmp_path, *short, "training.on_no_signal=stop")
    assert str(caught.value).startswith("no signal in steps 1 to 2: every advantage was 0")
    assert str(caught.value).endswith("training.on_no_signal: warn goes on all the same")
    folder = run_folder(tmp_path)
    assert {path.name for path in folder.glob("receipts/iteration-*")} == {"iteration-0001.json"}
    (damaged,) = folder.glob("checkpoints/iteration-*/policy/rank-0.pt")
    damaged.write_bytes(damaged.read_bytes()[:1000])
    events: list[ProgressEvent] = []
    monkeypatch.setattr("rl_core.trainers.progress.listeners", [*listeners, events.append])
    train_here(tiny_recipe, tmp_path, *short)
    assert run_folder(tmp_path) == folder
    (said,) = (event.text for event in events if "has changed" in event.text)
    assert f"the content of {damaged} has changed" in said
    assert "training continues from iteration 0" in said
