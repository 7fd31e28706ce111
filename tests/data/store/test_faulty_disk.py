"""A disk that fails while a file is read or written: a sentence names the file, and what was there
before stays. The disk is a library between a process and libc."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import REPOSITORY

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
SHIM = REPOSITORY / "benchmarks" / "fault_shim.c"
ROW = (
    '{"prompt": [{"role": "user", "content": "1+1?"}], "env_class": "gsm8k", '
    '"reward_spec": {"method": "rule", "ground_truth": "2"}}\n'
)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("shim") / "shim.so"
    command = ["cc", "-shared", "-fPIC", "-o", str(made), str(SHIM), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return made


def said_by(arguments: list[str], folder: Path, calls: str, shim: Path) -> str:
    """What `rl-train` says that meets EIO below `folder/disk`. It ends with 2."""
    settings = {
        "RL_TRAIN_HOME": str(folder / "home"),
        "LD_PRELOAD": str(shim),
        "FAULT_CALLS": calls,
        "FAULT_UNDER": str(folder / "disk"),
        "FAULT_WHEN": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", *arguments],
        cwd=folder,
        env=os.environ | settings | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_rows_that_cannot_be_read_are_named(tmp_path: Path, shim: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "rows.jsonl").write_text(ROW)
    said = said_by(["validate", "disk/rows.jsonl"], tmp_path, "read", shim)
    assert said.startswith("error: cannot read ") and "disk/rows.jsonl: Input/output error" in said


@pytest.mark.parametrize("name", ["made.jsonl", "made.parquet"])
def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(
    tmp_path: Path, shim: Path, name: str
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "rows.json").write_text(f"[{ROW}]")
    (tmp_path / "disk" / name).write_text("before")
    line = ["data", "convert", "--force", "rows.json", f"disk/{name}"]
    said = said_by(line, tmp_path, "write", shim)
    assert said == f"error: cannot write disk/{name}: the disk fails (dmesg says how): " + (
        "write to another disk"
    )
    assert [path.name for path in (tmp_path / "disk").iterdir()] == [name]
    assert (tmp_path / "disk" / name).read_text() == "before"
