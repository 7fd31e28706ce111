"""A kill at any moment: the next run publishes, at once, the bytes of a build that nobody
disturbed."""

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.stages.base import Stage
from rl_core.data.stages.run import prepare_stage
from rl_core.runtime.home import Home
from tests.data.stages.conftest import HERE, STAGES, content, start

SHORTEST = "vision"
NUM_KILLS = 8
"""Of each stage; one that comes after the end does not count."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name == SHORTEST else pytest.mark.long) for name in STAGES],
)
def test_after_a_kill_a_rerun_publishes_the_bytes_of_an_undisturbed_build(
    name: str,
    raw_dirs: dict[str, Path],
    stage: Callable[..., Stage[Any]],
    tmp_path: Path,
    home: Home,
) -> None:
    undisturbed = prepare_stage(
        stage(name, output=tmp_path / "undisturbed"), context=HERE, home=home
    )
    expected = content(Path(undisturbed.output))
    published = stage(name, output=tmp_path / "out").output
    receipts = published.parent / ".receipts" / published.name

    rng, killed, in_the_build = random.Random(name), 0, 0
    while killed < NUM_KILLS:
        process = start(name, raw_dirs[name], tmp_path / "out", home.root)
        # Most kills wait for the build to begin; the others fall anywhere, imports and reading of
        # inputs included.
        if rng.random() < 0.75:
            while process.poll() is None and not at_work(receipts):
                time.sleep(0.001)
            time.sleep(rng.random() * 0.03)
        else:
            time.sleep(rng.random() * 0.5)
        process.kill()
        process.communicate()
        if process.returncode != 0:
            killed += 1
            in_the_build += at_work(receipts)
            waits: list[str] = []
            receipt = prepare_stage(
                stage(name, output=tmp_path / "out"), context=HERE, home=home, note=waits.append
            )
            assert waits == [], "the dead owner's lock is free at once"
            assert (receipt.run_hash, content(published)) == (undisturbed.run_hash, expected)
            assert not [
                path
                for path in published.parent.iterdir()
                if path.name.startswith((".build-", ".old-"))
            ]
        for folder in (published, receipts):
            shutil.rmtree(folder, ignore_errors=True)
    assert in_the_build, "some kill has to hit a build at work"


def at_work(receipts: Path) -> bool:
    """Whether a build is at work, or was when it was killed: its receipt still says started."""
    for path in receipts.glob("????????????.json"):
        try:
            if json.loads(path.read_text())["status"] == "started":
                return True
        except (OSError, ValueError):
            continue
    return False
