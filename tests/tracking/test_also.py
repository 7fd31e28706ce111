"""Trackers next to MLflow, by the real packages: the same names, each step once, and a training
that goes on without them."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rl_core.errors import RecipeError
from rl_core.runs.observing.trackers import copy_to_trackers
from rl_core.runs.recipes import parse_recipe
from rl_core.runs.run_folder import RunFolder
from rl_core.tracking.also import needs
from rl_core.tracking.run import RunStatus, TrackingRun
from rl_core.trainers.progress import ProgressEvent, listeners
from schemas.recipe import Recipe
from schemas.sections.tracking import Tracker
from tests.tracking.recorded import in_tensorboard, in_wandb

BOTH = ["wandb", "tensorboard"]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for kind in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"WANDB_{kind}_DIR", str(tmp_path / "wandb-own"))


def recipe_with(also: list[str]) -> Recipe:
    for package in also:
        pytest.importorskip(package)
    model = {"path": "embedded:smollm2-135m-instruct"}
    rows = {"task": "chain_sum", "size": 8}
    data = {"train": [rows], "eval": [{**rows, "seed": 2}]}
    values = {"name": "watched", "model": model, "data": data, "tracking": {"also": also}}
    return parse_recipe(values)


def opened(open_run, recipe: Recipe, root: Path, run_id: str | None = None) -> TrackingRun:
    folder = RunFolder(root)
    folder.create("name: watched")
    tracking = open_run(run_id, outbox=folder.outbox)
    copy_to_trackers(tracking, recipe, folder)
    return tracking


@pytest.mark.slow
def test_every_tracker_has_the_metrics_under_their_names_in_mlflow(open_run, tmp_path: Path):
    tracking = opened(open_run, recipe_with(BOTH), tmp_path / "run")
    for step in (1, 2):
        tracking.log_metrics({"reward_mean": step / 4, "seconds/train": 2.0}, step)
    # Of an evaluation that belongs to an earlier step, and with a name that MLflow cannot keep.
    tracking.log_metrics({"eval/acc@1": 0.5, "grad_norm": float("nan")}, 1)
    tracking.finish()
    kept = tracking.client.get_run(tracking.run_id).data.metrics
    wanted = {
        ("reward_mean", 1): [0.25],
        ("reward_mean", 2): [0.5],
        ("seconds/train", 1): [2.0],
        ("seconds/train", 2): [2.0],
        ("eval/acc_x40_1", 1): [0.5],
    }
    assert in_tensorboard(tmp_path / "run/trackers/tensorboard") == wanted
    metrics, ids, config = in_wandb(tmp_path / "run/trackers")
    assert metrics == wanted
    assert ids == {tracking.run_id}
    assert config["optimizer.learning_rate"] == recipe_with(BOTH).optimizer.learning_rate
    assert {name for name, _ in wanted} <= set(kept)


KILLED = """
import os, signal, sys, time
from pathlib import Path
from tests.tracking.test_also import BOTH, opened, recipe_with
from rl_core.tracking.also.wandb_run import FLUSH_S
from rl_core.tracking.run import TrackingRun

uri, run_id, root = sys.argv[1:]
open_run = lambda run_id, **more: TrackingRun.open(uri, "killed", "a run", run_id=run_id, **more)
tracking = opened(open_run, recipe_with(BOTH), Path(root), run_id)
for step in (1, 2, 3):
    tracking.log_metrics({"reward_mean": step / 4}, step)
time.sleep(5 * FLUSH_S)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_run_goes_on_after_a_kill_without_losing_or_doubling_a_step(
    open_run, tracking, tmp_path: Path
):
    """The steps since the last checkpoint, 2 and 3, are trained again."""
    root, recipe = tmp_path / "run", recipe_with(BOTH)
    run_id = open_run().run_id
    script = textwrap.dedent(KILLED)
    # A process of its own, not one that shares this one's wandb service.
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}
    command = [sys.executable, "-c", script, tracking.uri, run_id, str(root)]
    done = subprocess.run(command, env=environment)
    assert done.returncode == -signal.SIGKILL
    again = opened(open_run, recipe, root, run_id)
    for step in (2, 3, 4):
        again.log_metrics({"reward_mean": step / 4}, step)
    again.finish()
    wanted = {("reward_mean", step): [step / 4] for step in (1, 2, 3, 4)}
    assert in_tensorboard(root / "trackers/tensorboard") == wanted
    metrics, ids, _ = in_wandb(root / "trackers")
    assert (metrics, ids) == (wanted, {run_id})


def test_a_tracker_that_fails_ends_no_training_and_is_said_once(
    open_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []

    def hear(event: ProgressEvent) -> None:
        said.append(event.text)

    recipe = recipe_with(["tensorboard"])
    (tmp_path / "run" / "trackers").mkdir(parents=True)
    (tmp_path / "run" / "trackers" / "tensorboard").write_text("a file in the folder's place")
    listeners.append(hear)
    try:
        tracking = opened(open_run, recipe, tmp_path / "run")
        tracking.log_metrics({"reward_mean": 1.0}, 1)
        tracking.finish(RunStatus.FINISHED)
    finally:
        listeners.remove(hear)
    assert len(said) == 1 and "tensorboard gets no more of this run" in said[0]
    data = tracking.client.get_run(tracking.run_id).data
    assert "tensorboard gets no more" in data.tags["tracker.tensorboard"]
    assert data.metrics["reward_mean"] == 1.0


def test_a_missing_package_is_refused_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"wandb is not installed; run pip install .*\[wandb\]"):
        needs.check_trackers([Tracker.WANDB])


def test_wandb_without_a_key_is_refused_before_it_asks_at_the_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    with pytest.raises(RecipeError, match="no API key: set WANDB_API_KEY"):
        needs.check_trackers([Tracker.WANDB])
    monkeypatch.setenv("WANDB_API_KEY", "x" * 40)
    needs.check_trackers([Tracker.WANDB])
