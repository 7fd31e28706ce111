"""Preparation outside the command line: standalone scripts, and a command in place of a stage."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_core.data.store.publish import open_published
from rl_core.errors import DataError
from schemas.receipts import PrepReceipt
from tests.data.stages.conftest import REPOSITORY

Prepare = Callable[..., PrepReceipt]
SENTINEL = ".mmpr_ready"
SCRIPTS = {
    "vision": "scripts/prepare_mmpr_tiny_for_vision_rl.py",
    "mpo": "scripts/prepare_public_mmpr_for_mpo.py",
}


def by_hand(script: str, raw: Path, output: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, script, "--input-dir", str(raw), "--output-dir", str(output)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_publishes_what_its_stage_does(
    name: str, raw_dirs: dict[str, Path], prepare: Prepare, tmp_path: Path
) -> None:
    done = by_hand(SCRIPTS[name], raw_dirs[name], tmp_path / "by-hand")
    assert done.returncode == 0, done.stderr
    published = Path(done.stdout.splitlines()[-1].split(": ")[0])
    same = open_published(prepare(name).output, SENTINEL)
    assert open_published(published, SENTINEL) == same


def test_a_script_says_what_is_missing(tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "rows.jsonl").write_text("{}\n")
    done = by_hand(SCRIPTS["mpo"], raw, tmp_path / "out")
    assert done.returncode == 2
    assert f"error: {raw}: no meta.json" in done.stderr and "Traceback" not in done.stderr


def test_a_builder_command_builds_the_cache(prepare: Prepare, tmp_path: Path) -> None:
    command = f"python {REPOSITORY / SCRIPTS['mpo']}"
    built = prepare("mpo", f"builder_command={command}", output=tmp_path / "other")
    same = open_published(prepare("mpo").output, SENTINEL)
    assert open_published(built.output, SENTINEL).files == same.files
    assert built.row_stats == same.counts


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("python -c 0/0", "ZeroDivisionError"),
        ("echo done", "builder_command: echo done: wrote no folder MMPR-v1.2"),
        ("no-such-command", "cannot be started"),
    ],
)
def test_a_builder_that_fails_publishes_nothing(
    prepare: Prepare, command: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        prepare("mpo", f"builder_command={command}", output=tmp_path / "out")
    assert not (tmp_path / "out" / "MMPR-v1.2").exists()


def test_absolute_paths_in_the_meta_lead_to_the_published_files(prepare: Prepare) -> None:
    output = Path(prepare("mpo", "meta_paths=absolute").output)
    meta = json.loads((output / "meta_public.json").read_text())
    for entry in meta.values():
        assert Path(entry["annotation"]).is_absolute() and Path(entry["annotation"]).is_file()
        assert Path(entry["root"]) == output / "MMPR" / "images" / Path(entry["root"]).name
