"""Command lines that cannot work: each ends with a sentence that names what is wrong, never in a
traceback, and starts no server."""

import contextlib
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest
from prefect.logging import disable_run_logger

from flows.cli import main
from flows.console import visible
from flows.exit_codes import ExitCode
from rl_core.runs.session import close_sessions
from tests.flows.damaged_folder import make_folder
from tests.flows.damaged_lines import Line, lines
from tests.made_runs import make_run, recipe_of, register

LIMIT_S = 120
"""After this a command counts as hung."""


PART = re.compile(r"[\w.-]{3,}")


class Hung(BaseException):
    """A command did not end."""


class Started(BaseException):
    """A command began to start a server, a cluster or a model."""


@dataclass(frozen=True)
class Ending:
    """How a command ended."""

    code: int
    said: str
    raised: BaseException | None = None


def forbid_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start of Ray, Prefect or a web server raises `Started`."""
    import ray
    import uvicorn

    import flows.local_api
    import rl_core.services.all_services

    def started(*_: object, **__: object) -> None:
        raise Started

    monkeypatch.setattr(ray, "init", started)
    monkeypatch.setattr(uvicorn.Server, "run", started)
    monkeypatch.setattr(flows.local_api.LocalApi, "__init__", started)
    monkeypatch.setattr(rl_core.services.all_services.Stack, "_start_all", started)


def ending(line: Line, home: Path) -> Ending:
    """Run a command in this process, with its own output and environment."""
    out, err = io.StringIO(), io.StringIO()
    before, path, argv = dict(os.environ), list(sys.path), sys.argv
    handlers = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}
    os.environ.update({"RL_TRAIN_HOME": str(home), "COLUMNS": "10000"} | line.environment)
    sys.argv = ["rl-train", *line.arguments]
    raised, code = None, 0
    signal.signal(signal.SIGALRM, _hung)
    signal.alarm(LIMIT_S)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")
            main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException as error:
        raised, code = error, 1
    finally:
        signal.alarm(0)
        os.environ.clear()
        os.environ.update(before)
        sys.path[:], sys.argv = path, argv
        for one, handler in handlers.items():
            signal.signal(one, handler)
    return Ending(code, out.getvalue() + err.getvalue(), raised)


def _hung(signum: int, frame: FrameType | None) -> None:
    raise Hung


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[Path]:
    """The damaged files, and beside them a home with one registered version."""
    made = tmp_path_factory.mktemp("damaged")
    (made / "files").mkdir()
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(made / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        register(make_run(recipe_of("mine", made, tiny_model_dir), [0.0] * 4, [1.0] * 4))
    close_sessions()
    make_folder(made / "files")
    yield made


LINES = list(lines())
SAMPLE = 5
"""Every how many-th line is tried in the short suite."""


def test_there_are_hundreds_of_them() -> None:
    assert len(LINES) > 300


@pytest.fixture
def faults_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Line]], list[str]]:
    """Runs lines; returns what is wrong with the end of each."""
    forbid_starts(monkeypatch)
    monkeypatch.chdir(folder / "files")

    def run(chosen: list[Line]) -> list[str]:
        faults = []
        for line in chosen:
            found = fault(line, ending(line, folder / "home"))
            faults += [f"{line.arguments} {line.environment}: {found}"] if found else []
        return faults

    return run


@pytest.mark.slow
def test_a_sample_of_them_ends_with_a_sentence(
    faults_of: Callable[[list[Line]], list[str]],
) -> None:
    assert faults_of(LINES[::SAMPLE]) == []


@pytest.mark.long
@pytest.mark.parametrize("command", sorted({line.arguments[0] for line in LINES}))
def test_each_ends_with_a_sentence(
    command: str, faults_of: Callable[[list[Line]], list[str]]
) -> None:
    assert faults_of([line for line in LINES if line.arguments[0] == command]) == []


def fault(line: Line, end: Ending) -> str:
    """Say what is wrong with the end of a command line that cannot work; empty if nothing is."""
    if end.raised is not None:
        return f"raised {end.raised!r:.300}"
    if end.code not in (
        ExitCode.USER_ERROR,
        *([ExitCode.MACHINE_ERROR] if _asks_a_server(line) else []),
    ):
        return f"ended with {end.code}, saying {end.said[-200:]!r}"
    if "Traceback" in end.said or not end.said.strip():
        return f"said {end.said[-300:]!r}"
    return "" if names_it(line, end.said) else f"does not name it: {end.said[-300:]!r}"


def _asks_a_server(line: Line) -> bool:
    """A server that does not answer is no fault of the user's, and may do so later."""
    return "127.0.0.1:9" in str([line.arguments, line.environment])


def names_it(line: Line, said: str) -> bool:
    """Return True if a message holds the damaged value or a part of it, or its parameter's name."""
    value = visible(line.damage).strip()
    spoken = {value[:80], line.parameter, line.parameter.replace("_", "-")}
    spoken |= {f"{value.partition('.')[0]}:", value.partition("=")[0], *PART.findall(value)}
    return not value or any(one in said for one in spoken if one)
