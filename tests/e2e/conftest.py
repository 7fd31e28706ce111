"""Real runs: in processes of their own, started, watched, killed and counted; or in this one, where
its end is all."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import psutil
import pytest
import yaml
from prefect.settings import PREFECT_API_URL

from rl_core.runs.session import close_sessions
from rl_core.runtime.home import Home
from schemas.receipts import ModelReceipt
from tests.e2e.outcomes import assert_identical, held_out_scores, run_folder, trained_weights
from tests.processes import command_line, open_to_others, still_running

REPOSITORY = Path(__file__).resolve().parents[2]
DEADLINE_S = 240


class Run:
    """One `rl-train run` in its own process."""

    shared_server: ClassVar[dict[str, str]] = {}
    """Names the Prefect server of the session. To start one takes a run ten seconds."""

    def __init__(self, recipe: Path, home: Path, *arguments: str, own_server: bool = False) -> None:
        self.own_server = own_server
        environment = os.environ | {"RL_TRAIN_HOME": str(home), "PYTHONUNBUFFERED": "1"}
        if not own_server:
            environment |= self.shared_server
        command = [sys.executable, "-m", "flows.cli", "run", str(recipe), *arguments]
        self.process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.started: list[psutil.Process] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str) -> None:
        """Wait until a line contains `text`."""
        end = time.monotonic() + DEADLINE_S
        while text not in self.output:
            assert self.process.poll() is None and time.monotonic() < end, (
                f"{text!r} not seen in:\n{self.output}"
            )
            time.sleep(0.02)

    def finish(self) -> int:
        """Wait for the end; returns the exit code."""
        code = self.process.wait(DEADLINE_S)
        self._reader.join(10)
        return code

    def descendants(self) -> list[psutil.Process]:
        """All processes below the run."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def workers(self) -> list[psutil.Process]:
        """The trainer's worker processes."""
        return [
            child
            for child in self.descendants()
            if any("DeviceWorker" in part for part in command_line(child))
        ]

    def kill(self) -> list[psutil.Process]:
        """kill -9 the flow process. Returns: what ran below it."""
        below = self.started = self.descendants()
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)
        return below

    def close(self) -> None:
        """End the run and whatever it started; an orphan would hold the output pipe open."""
        below = self.started
        if self.process.poll() is None:
            below = [*below, *self.kill()]
        for child in below:
            if child.is_running():
                child.kill()
        self._reader.join(10)
        if not self._reader.is_alive():
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextmanager
def undisturbed_run(recipe: Path, home: Path, *overrides: str) -> Iterator[Run]:
    """A run that ended well, listened to this machine alone, and left no process behind."""
    run = Run(recipe, home, *overrides)
    try:
        run.wait_for("train-iteration 1: complete")
        below = run.descendants()
        assert not open_to_others([psutil.Process(run.process.pid), *below])
        assert run.finish() == 0, run.output
        assert not still_running(below)
        yield run
    finally:
        run.close()


def train_here(recipe: Path, home: Path, *overrides: str) -> None:
    """A run in this process, on the session's server and cluster; one of its own takes 20 s to
    start.

    The caller asks for the fixture `ray_cluster`.
    """
    from flows.rl_train import rl_train

    with working_in(home):
        assert isinstance(rl_train(str(recipe), list(overrides)), ModelReceipt)


@contextmanager
def working_in(home: Path) -> Iterator[None]:
    """What flows export to their process ends with the block, and so do the workers they leave to
    the next one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAIN_HOME", str(home))
        for name, value in Home.default().environment().items():
            patch.setenv(name, value)
        try:
            yield
        finally:
            close_sessions()


def assert_kills_change_nothing(
    start: Callable[..., Run],
    recipe: Path,
    home: Path,
    undisturbed: Path,
    *overrides: str,
    go_on: Callable[..., None] = train_here,
) -> None:
    """kill -9 of the workers after the first iteration and of the flow process after the second of
    three. Until then nothing of the run listens beyond this machine.

    Every process ends with the flow; `go_on` then runs the same again, and ends as the undisturbed
    home did, bit by bit.
    """
    run = start(recipe, home, *overrides)
    run.wait_for("train-iteration 1: complete")
    workers = run.workers()
    assert workers
    for worker in workers:
        worker.kill()
    run.wait_for("train-iteration 2: complete")
    assert run.output.count("start workers") == 2, "the retry started no fresh workers"
    assert (
        any("uvicorn" in part for child in run.descendants() for part in command_line(child))
        == run.own_server
    )
    assert not open_to_others([psutil.Process(run.process.pid), *run.descendants()])
    assert not still_running(run.kill())
    assert not list(home.glob("runs/*/model")), "killed too late to show anything"
    second = run_folder(home) / "receipts" / "iteration-0002.json"
    written = second.stat().st_mtime_ns
    go_on(recipe, home, *overrides)
    assert second.stat().st_mtime_ns == written, "what was complete already was done again"
    assert_identical(trained_weights(home), trained_weights(undisturbed))
    assert held_out_scores(home) == held_out_scores(undisturbed)


@pytest.fixture(scope="session", autouse=True)
def shared_server(prefect_harness: None) -> None:
    """The server of all runs but those that start their own."""
    Run.shared_server = {"PREFECT_API_URL": str(PREFECT_API_URL.value())}


@pytest.fixture
def start() -> Iterator[Callable[..., Run]]:
    """Starts runs and ends them with the test."""
    runs: list[Run] = []

    def _start(recipe: Path, home: Path, *arguments: str, own_server: bool = False) -> Run:
        runs.append(Run(recipe, home, *arguments, own_server=own_server))
        return runs[-1]

    yield _start
    for run in runs:
        run.close()


@pytest.fixture(scope="session")
def undisturbed(tiny_recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a run that nothing disturbed and that left no process behind."""
    home = tmp_path_factory.mktemp("undisturbed")
    with undisturbed_run(tiny_recipe, home):
        yield home


@pytest.fixture(scope="session")
def smoke_models(
    tiny_model_dir: Path, tiny_vlm_dir: Path, tiny_sd3_dir: Path, tiny_unified_dir: Path
) -> dict[str, str]:
    """Variables that the smoke recipes read: tiny models in place of the embedded ones."""
    return {
        "SMOKE_MODEL": str(tiny_model_dir),
        "SMOKE_VISION_MODEL": str(tiny_vlm_dir),
        "SMOKE_DIFFUSION_MODEL": str(tiny_sd3_dir),
        "SMOKE_UNIFIED_MODEL": str(tiny_unified_dir),
    }


@pytest.fixture(scope="session")
def tiny_recipe(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Path:
    """A recipe on the tiny model: three iterations of four steps."""
    sums = {
        "task": "chain_sum",
        "split": "train",
        "size": 40,
        "seed": 1,
        "eval_fraction": 0.3,
        "config": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
    }
    values = {
        "name": "tiny",
        "model": {"path": str(tiny_model_dir)},
        "fsdp": {"param_dtype": "float32"},
        "optimizer": {"learning_rate": 0.003},
        "data": {
            "train": [sums],
            "eval": [sums | {"split": "eval", "size": 16}],
            "max_prompt_length": 200,
        },
        # Partial credit gives a random model rewards that differ, so that there is something to
        # learn from.
        "environments": {"reasoning_gym": {"answer": "text", "partial_credit": True}},
        "rollout": {"samples_per_prompt": 4, "max_new_tokens": 12},
        "training": {"num_iterations": 3, "steps_per_iteration": 4, "prompts_per_step": 8},
        "evaluation": {"max_new_tokens": 12},
        "placement": {"threads_per_device": 1},
    }
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    return path
