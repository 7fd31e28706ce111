"""The folder of local state."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from rl_core.errors import StorageError
from rl_core.runtime.home import PROBED_BYTES, Home


def test_a_home_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    Home(tmp_path / "new" / "home").check_writable()
    assert list((tmp_path / "new" / "home").iterdir()) == []


def test_a_home_below_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"home .*/file/home cannot be written to: Not a dir"):
        Home(tmp_path / "file" / "home").check_writable()


def test_a_command_on_a_disk_without_room_ends_before_its_servers_start(tmp_path: Path) -> None:
    half = PROBED_BYTES // 2
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli", "run", "smoke/text"],
        env=os.environ | {"RL_TRAIN_HOME": str(tmp_path / "home")},
        # The kernel refuses larger files, as a full disk would.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (half, half)),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") < 6, done.stderr
    assert f"the home {tmp_path}/home cannot be written to: File too large" in done.stderr
    assert "Traceback" not in done.stderr
