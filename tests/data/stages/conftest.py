"""The fixtures that `rl-train data make-fixture` makes, a stage over each, and ways to end a
preparation badly."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_core.builtin.data.make_fixture import make_fixture
from rl_core.data.prepare.workers import run_here
from rl_core.data.stages.base import Context, Stage
from rl_core.data.stages.run import load_stage, prepare_stage
from rl_core.runtime.home import Home
from schemas.receipts import PrepReceipt

STAGES = ("mpo", "text", "vision", "diffusion")
REPOSITORY = Path(__file__).parents[3]
HERE = Context(run=run_here)

SCRIPT = """
import sys
from rl_core.data.stages.run import load_stage, prepare_stage
name, raw, out, *overrides = sys.argv[1:]
receipt = prepare_stage(load_stage(name, overrides, input_dir=raw, output_dir=out))
print("hit" if receipt.hit else "built", receipt.run_hash)
"""


@pytest.fixture(scope="session")
def raw_dirs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Stage -> raw folder. Read only: a test that changes one copies it first."""
    return make_fixture(tmp_path_factory.mktemp("fixture") / "raw")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def stage(raw_dirs: dict[str, Path], tmp_path: Path) -> Callable[..., Stage[Any]]:
    """A stage over the fixture, or over other raw files."""

    def make(
        name: str, *overrides: str, raw: Path | None = None, output: Path | None = None
    ) -> Stage[Any]:
        held_out = ("val_fraction=0.25",) if name == "text" else ()
        return load_stage(
            name,
            (*held_out, *overrides),
            input_dir=raw or raw_dirs[name],
            output_dir=output or tmp_path / name,
        )

    return make


@pytest.fixture
def prepare(stage: Callable[..., Stage[Any]], home: Home) -> Callable[..., PrepReceipt]:
    """Prepare the fixture's stage."""

    def run(name: str, *overrides: str, force: bool = False, **where: Path) -> PrepReceipt:
        return prepare_stage(stage(name, *overrides, **where), context=HERE, force=force, home=home)

    return run


def content(folder: Path) -> dict[str, str]:
    """Path inside the folder -> sha256, of every file."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def start(
    name: str, raw: Path, output: Path, home: Path, *overrides: str, prefix: tuple[str, ...] = ()
) -> Any:
    """A preparation in a process of its own."""
    held_out = ("val_fraction=0.25",) if name == "text" else ()
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", SCRIPT, name, str(raw), str(output), *held_out, *overrides],
        cwd=REPOSITORY,
        env={**os.environ, "RL_TRAIN_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
