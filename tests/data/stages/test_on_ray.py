"""The heavy part on a Ray cluster: the same bytes, the same errors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.stages import base
from rl_core.data.stages.base import Context, Stage
from rl_core.data.stages.run import prepare_stage
from rl_core.distributed.ray_data.jobs import cluster_runner
from rl_core.errors import DataError
from rl_core.runtime.home import Home
from tests.data.stages.conftest import HERE, STAGES, content


# Ray Data 2.60 copies its own settings into its workers, deprecated ones included.
@pytest.mark.filterwarnings("ignore:.* is deprecated:DeprecationWarning")
@pytest.mark.slow
def test_a_cluster_publishes_the_bytes_of_a_single_machine(
    ray_cluster: None,
    stage: Callable[..., Stage[Any]],
    home: Home,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raw_dirs: dict[str, Path],
) -> None:
    monkeypatch.setattr(base, "SMALL_BYTES", 0)
    for name in STAGES:
        told: list[tuple[str, int, int]] = []
        context = Context(
            progress=lambda *event, told=told: told.append(event), run=cluster_runner("auto")
        )
        there = stage(name, "num_workers=3", output=tmp_path / "ray" / name)
        on_ray = prepare_stage(there, context=context, home=home)
        here = prepare_stage(stage(name, output=tmp_path / "here" / name), context=HERE, home=home)
        assert (on_ray.run_hash, on_ray.row_stats) == (here.run_hash, here.row_stats)
        assert content(Path(on_ray.output)) == content(Path(here.output))
        assert all(done <= total for _, done, total in told)
        assert {phase for phase, done, total in told if done == total} >= {
            phase for phase, _, _ in told
        }

    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "mmpr_tiny.parquet").write_bytes(
        (raw_dirs["vision"] / "mmpr_tiny.parquet").read_bytes()
    )
    archive = bytearray((raw_dirs["vision"] / "images.zip").read_bytes())
    archive[60:90] = b"\xff" * 30
    (broken / "images.zip").write_bytes(archive)
    context = Context(run=cluster_runner("auto"))
    with pytest.raises(DataError, match=r"images\.zip: a damaged or truncated zip archive"):
        prepare_stage(
            stage("vision", raw=broken, output=tmp_path / "never"), context=context, home=home
        )
    assert not (tmp_path / "never").exists()
