"""A checkpoint that the disk refuses is an error with advice, and nothing remains that counts as
complete."""

import resource
from pathlib import Path

import pytest

from rl_core.errors import StorageError
from rl_core.ranks.rank_info import RankInfo
from rl_core.runs.run_folder import RunFolder
from tests.train.jobs import Setup, make_both
from tests.train.ranks import Ranks


def refused_writes(rank_info: RankInfo, setup: Setup, run_dir: str) -> tuple[str, str]:
    """What a checkpoint and an export say to a kernel that refuses files over 16 KiB, as a full
    disk would; afterwards the last complete checkpoint is there and loads."""
    backend, _ = make_both(rank_info, setup)
    folder = RunFolder(Path(run_dir))
    folder.create("name: full-disk")
    with folder.publish_checkpoint(1, {"step": 1}, keep_last=2) as building:
        backend.save(str(building))
    resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
    with (
        pytest.raises(StorageError) as checkpoint,
        folder.publish_checkpoint(2, {"step": 2}, keep_last=2) as building,
    ):
        backend.save(str(building))
    with pytest.raises(StorageError) as export:
        backend.export(run_dir + "-export")
    assert folder.last_complete() == 1
    assert [path.name for path in folder.checkpoints.iterdir()] == ["iteration-0001"]
    backend.load(str(folder.checkpoint(1)))
    return str(checkpoint.value), str(export.value)


def test_a_refused_write_keeps_the_last_complete_checkpoint(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    setup, run_dir = Setup(str(tiny_model_dir)), str(tmp_path / "run")
    # A process of its own, whose limit ends with it.
    with Ranks(1) as limited:
        checkpoint, export = limited.run(1, refused_writes, setup, run_dir)[0]
    assert checkpoint.startswith("checkpoint")
    assert "free some space" in checkpoint
    assert export.startswith(f"cannot write {tmp_path}/run-export")
    assert "grew past the size limit" in export
