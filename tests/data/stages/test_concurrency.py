"""One output, many processes: one build, the same result for all, and no wrong cache whatever the
order."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.order.vision_dataset import VisionDataset
from rl_core.data.store.lock import output_lock
from rl_core.data.store.publish import lock_path, parse_sentinel
from tests.data.stages.conftest import REPOSITORY, content, start

HOLDER = """
import sys, time
from pathlib import Path
from rl_core.data.store.lock import output_lock
with output_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def finish(process: Any) -> str:
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return output.strip()


@pytest.mark.slow
def test_sixteen_processes_make_one_build_and_fifteen_hits(
    raw_dirs: dict[str, Path], tmp_path: Path
) -> None:
    running = [
        start("vision", raw_dirs["vision"], tmp_path / "out", tmp_path / "home") for _ in range(16)
    ]
    outcomes = [finish(process) for process in running]
    assert sorted(outcome.split()[0] for outcome in outcomes) == ["built"] + ["hit"] * 15
    assert len({outcome.split()[1] for outcome in outcomes}) == 1
    assert len(VisionDataset(tmp_path / "out", outcomes[0].split()[1])) == 24
    receipts = list((tmp_path / ".receipts" / "out").glob("????????????.json"))
    assert [json.loads(path.read_text())["status"] for path in receipts] == ["completed"]


@pytest.mark.slow
def test_two_parameter_sets_of_one_output_never_publish_a_wrong_cache(
    raw_dirs: dict[str, Path], tmp_path: Path
) -> None:
    expected = {}
    for rows in (1, 2):
        alone = tmp_path / f"alone-{rows}"
        process = start(
            "vision", raw_dirs["vision"], alone, tmp_path / "home", f"preview_rows={rows}"
        )
        run_hash = finish(process).split()[1]
        expected[run_hash] = content(alone)
    assert len(expected) == 2
    running = [
        start(
            "vision",
            raw_dirs["vision"],
            tmp_path / "out",
            tmp_path / "home",
            f"preview_rows={1 + i % 2}",
        )
        for i in range(6)
    ]
    seen = 0
    while any(process.poll() is None for process in running):
        sentinel = parse_sentinel(tmp_path / "out", ".mmpr_ready")
        if sentinel is not None:
            seen += 1
            assert sentinel.run_hash in expected
        time.sleep(0.01)
    assert {finish(process).split()[1] for process in running} == set(expected)
    last = parse_sentinel(tmp_path / "out", ".mmpr_ready")
    assert last is not None and content(tmp_path / "out") == expected[last.run_hash]
    assert seen


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that holds the lock at the given path, and is ended with the test."""
    started: list[subprocess.Popen[str]] = []

    def hold(path: Path) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(path)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.communicate()


def test_a_waiter_is_told_whom_it_waits_for_and_takes_over_when_the_owner_dies(
    holder, tmp_path: Path
) -> None:
    path, notes = tmp_path / "lock", list[str]()
    owner = holder(path)

    def note(text: str) -> None:
        notes.append(text)
        owner.kill()

    with output_lock(path, note):
        assert path.read_text().startswith(f"process {os.getpid()} on ")
    [said] = notes
    assert said.startswith(f"waiting for process {owner.pid} on ")


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path: Path) -> None:
    """A library's worker, forked during a build, must not hold up the next one."""
    path = tmp_path / "lock"
    code = (
        "import os, sys, time\nfrom pathlib import Path\nfrom rl_core.data.store.lock import "
        "output_lock\nlock = output_lock(Path(sys.argv[1])); lock.__enter__()\nchild = "
        "os.fork()\nif child == 0:\n    os.close(1); os.close(2); time.sleep(60); os._exit(0)\n"
        "print(child, flush=True); os._exit(1)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], cwd=REPOSITORY, capture_output=True, text=True
    )
    child = int(done.stdout)
    try:
        with output_lock(path):
            assert path.read_text().startswith(f"process {os.getpid()} on ")
        os.kill(child, 0)  # still there, and holding nothing
    finally:
        os.kill(child, 9)


@pytest.mark.parametrize("years", [-30, 30])
def test_a_jumping_clock_neither_breaks_nor_blocks_a_lock(
    years: int, holder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[..., Any]
) -> None:
    path, now = tmp_path / "lock", time.time()
    owner = holder(path)
    monkeypatch.setattr(time, "time", lambda: now + years * 365 * 86400)
    monkeypatch.setattr(time, "time_ns", lambda: int((now + years * 365 * 86400) * 1e9))
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        assert owner.poll() is None, "a living owner is never robbed"
        owner.kill()

    with output_lock(path, note):
        assert notes
    assert not prepare("vision").hit
    assert prepare("vision").hit


def test_the_lock_file_is_beside_the_output(tmp_path: Path) -> None:
    assert lock_path(tmp_path / "out") == tmp_path / ".out.lock"
