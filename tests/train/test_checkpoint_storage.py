"""A checkpoint that the disk refuses is an error with advice, and nothing remains that counts as
complete."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import resource, sys
import torch.distributed as dist
from pathlib import Path
from rl_core.errors import StorageError
from rl_core.models.bundle import ModelBundle
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.fsdp import FSDPBackend
from rl_core.runs.run_folder import RunFolder
from schemas.recipe import FSDPConfig, LrSchedulerConfig, ModelConfig, OptimizerConfig

model_dir, run_dir = sys.argv[1:]
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
backend = FSDPBackend(
    ModelBundle(model_dir, ModelConfig(path=model_dir)), FSDPConfig(), OptimizerConfig(), LrSchedulerConfig(), None,
    total_steps=1, seed=0, with_reference=False, rank_info=RankInfo(0, 1, "cpu", 1),
)
folder = RunFolder(Path(run_dir))
folder.create("name: full-disk")
with folder.publish_checkpoint(1, {"step": 1}, keep_last=2) as building:
    backend.save(str(building))
# From here the kernel refuses files over 16 KiB, as a full disk would.
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
try:
    with folder.publish_checkpoint(2, {"step": 2}, keep_last=2) as building:
        backend.save(str(building))
except StorageError as error:
    print("StorageError:", error)
try:
    backend.export(run_dir + "-export")
except StorageError as error:
    print("export:", error)
print("last complete:", folder.last_complete(), sorted(path.name for path in folder.checkpoints.iterdir()))
resource.setrlimit(resource.RLIMIT_FSIZE, (16384, 16384))
backend.load(str(folder.checkpoint(1)))
print("still loads")
dist.destroy_process_group()
"""  # noqa: E501


def test_a_refused_write_keeps_the_last_complete_checkpoint(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tiny_model_dir), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "StorageError: checkpoint" in done.stdout
    assert "free some space" in done.stdout
    assert f"export: cannot write {tmp_path}/run-export" in done.stdout
    assert "grew past the size limit" in done.stdout
    assert "last complete: 1 ['iteration-0001']" in done.stdout
    assert "still loads" in done.stdout
