"""Recording of what worker processes compute, in all of their blocks."""

import gzip
import json
from pathlib import Path

from rl_core.distributed import (
    Block,
    DevicePool,
    Remote,
    per_rank,
    placement,
    remote,
    remote_everywhere,
)
from rl_core.distributed.step_profiler import StepProfiler
from tests.distributed.components import Counter


def test_a_trace_holds_forward_and_backward_of_its_step_alone(
    pair: tuple[Block, Remote, Remote], tmp_path: Path
):
    block, _, counter = pair
    (profiler,) = remote_everywhere(block, StepProfiler)
    counter.gradient()
    profiler.start()
    counter.gradient()
    traces = per_rank(profiler.stop)(str(tmp_path / "profiles"), "step-00003")
    counter.gradient()
    assert [Path(one).name for one in traces] == [
        "step-00003-rank-0.json.gz",
        "step-00003-rank-1.json.gz",
    ]
    for one in traces:
        events = json.loads(gzip.decompress(Path(one).read_bytes()))["traceEvents"]
        names = [event["name"] for event in events if event.get("cat") == "cpu_op"]
        assert names.count("aten::matmul") == 1
        assert any("MmBackward0" in name for name in names), "autograd's threads are left out"
    assert per_rank(profiler.stop)(str(tmp_path), "again") == [None, None]


def test_processes_of_inner_blocks_are_recorded_too(pool: DevicePool):
    with placement(pool, fraction=0.5) as outer:
        with placement(pool, fraction=0.5):
            remote(Counter, 0)
        with placement(pool, fraction=0.5):
            remote(Counter, 0)
    try:
        assert len(remote_everywhere(outer, StepProfiler)) == 2
    finally:
        outer.close()
