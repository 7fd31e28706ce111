"""Distribution of a preparation's heavy part to a cluster: each job is a row of a Ray Data dataset.

Inputs and output must be on a disk that all nodes share. Results come back in the order of the
jobs, so the published result is the same as on a single machine.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass

from rl_core.data.prepare.workers import Advance, Runner, named_function


def cluster_runner(address: str) -> Runner:
    """Return a runner that executes jobs on the cluster at `address`; progress is reported job by
    job."""

    def run(function: str, jobs: Sequence[object], advance: Advance) -> list[object]:
        from rl_core.distributed.cluster import ray_cluster

        if not jobs:
            return []
        with ray_cluster(address, 1, "cpu"):
            return _run(function, jobs, advance)

    return run


def _run(function: str, jobs: Sequence[object], advance: Advance) -> list[object]:
    import ray.data

    dataset = ray.data.range(len(jobs), override_num_blocks=len(jobs))
    # Blocks would otherwise come back as they are finished.
    dataset.context.execution_options.preserve_order = True
    dataset.context.enable_progress_bars = False
    results: list[object] = []
    for row in dataset.map(_RunJob(function, list(jobs))).iter_rows():
        failed, value, done = pickle.loads(row["outcome"])
        if failed:
            raise value
        advance(done)
        results.append(value)
    return results


@dataclass
class _RunJob:
    """Runs a job on a worker. Its error travels as a value, since Ray Data would wrap it into its
    own."""

    function: str
    jobs: list[object]

    def __call__(self, row: dict[str, int]) -> dict[str, bytes]:
        done = [0]

        def count(number: int) -> None:
            done[0] += number

        call = named_function(self.function)
        try:
            outcome = (False, call(self.jobs[int(row["id"])], count), done[0])
        except Exception as error:  # raised again by the driver
            outcome = (True, error, done[0])
        return {"outcome": pickle.dumps(outcome)}
