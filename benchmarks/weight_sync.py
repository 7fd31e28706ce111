"""`make bench-weight-sync`: every kind of sync, compared with the gather alone and with memcpy of
as many bytes.

One process trains and one samples, each on its own thread. Every sync sends, since the weights are
marked as changed in between.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch

from rl_core.distributed import DevicePool, Remote, placement, ray_cluster, remote
from rl_core.distributed.weight_sync import SyncReport, WeightSync
from rl_core.models.bundle import ModelBundle
from rl_core.models.locate import locate
from rl_core.rollout.dedicated import DedicatedEngine
from rl_core.runtime.home import Home
from rl_core.train.fsdp import FSDPBackend
from schemas.recipe import FSDPConfig, LoraConfig, LrSchedulerConfig, ModelConfig, OptimizerConfig
from schemas.sections.rollout import RolloutConfig, SyncConfig, SyncMode, SyncTransport
from schemas.sections.section import DType

LORA = LoraConfig(rank=16)
CASES = {
    "full": (None, SyncMode.FULL),
    "adapters": (LORA, SyncMode.ADAPTER),
    "adapters, merged": (LORA, SyncMode.FULL),
}


class Toucher:
    """Worker that marks the weights as changed."""

    def __init__(self, backend: FSDPBackend) -> None:
        self.backend = backend

    def touch(self) -> None:
        self.backend._num_changes += 1


def measure(source: str, lora: LoraConfig | None, mode: SyncMode, repeats: int) -> None:
    """Print the figures of one case."""
    model = ModelConfig(path=source)
    with placement(DevicePool(2, threads_per_device=1)) as whole:
        with placement(whole.pool, fraction=0.5):
            own = source, model, lora, mode, DType.BFLOAT16
            engine = remote(DedicatedEngine, *own, RolloutConfig(), {}, {}, 0)
        with placement(whole.pool, fraction=0.5):
            bundle = remote(ModelBundle, source, model)
            options: Any = {"total_steps": 1, "seed": 0, "with_reference": False}
            backend = remote(
                FSDPBackend,
                bundle,
                FSDPConfig(),
                OptimizerConfig(),
                LrSchedulerConfig(),
                lora,
                **options,
            )
            toucher = remote(Toucher, backend)
            syncs = {way: sync_of(backend, engine, way, mode) for way in SyncTransport}
    try:
        gather_s = best(backend.full_state, repeats)
        for way, sync in syncs.items():
            reports: list[SyncReport] = []
            for _ in range(repeats + 1):
                toucher.touch()
                reports.append(sync.sync())
            # The first one also opens the way and compares what is never sent.
            seconds = min(report.seconds for report in reports[1:])
            num_bytes = reports[0].num_bytes
            print(
                f"{mode:8} {way:13} {num_bytes / 1e6:8.1f} MB  sync {seconds:6.2f} s  first "
                f"{reports[0].seconds:6.2f} s  gather alone {gather_s:6.2f} s  memcpy "
                f"{memcpy(num_bytes, repeats):6.3f} s"
            )
    finally:
        whole.close()


def sync_of(backend: Remote, engine: Remote, way: SyncTransport, mode: SyncMode) -> Remote:
    return remote(
        WeightSync, backend=backend, rollout=engine, config=SyncConfig(transport=way, mode=mode)
    )


def memcpy(num_bytes: int, repeats: int) -> float:
    source, target = (
        torch.ones(num_bytes, dtype=torch.uint8),
        torch.empty(num_bytes, dtype=torch.uint8),
    )
    return best(lambda: target.copy_(source), repeats)


def best(work: Callable[[], object], repeats: int) -> float:
    """Return the seconds of the fastest run."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="embedded:smollm2-135m-instruct")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    source = locate(arguments.model, Home.default().models)
    with ray_cluster(None, 2, "cpu"):
        for title, (lora, mode) in CASES.items():
            print(title)
            measure(source, lora, mode, arguments.repeats)


if __name__ == "__main__":
    main()
