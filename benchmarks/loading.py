"""`make bench-loading`: main memory of ranks that load a model to shard it, and the time: whole on
every rank, and block by block, with and without room for the layers on the first rank.

    python -m benchmarks.loading [--model 360M] [--ranks 2] [--write]

The model has random weights, stored in bfloat16, and is trained whole: each rank ends with its
share of the float32 weights. Ranks are processes on this machine, with gloo. Bytes are what a
process grew by at its peak (VmHWM), from before the bundle is made until the backend stands, over
the parameters of the whole model; optimiser state comes later. CPU seconds are the rank's own, and
say more than seconds where others use the machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import page
from benchmarks.random_models import RandomModels

WAYS = {
    "whole": "whole on every rank",
    "blocks": "block by block, room for its layers while it is checked",
    "tight": "block by block, no room",
}
TITLE = "Loading a model on several ranks"


def on_a_rank(rank: int, num_ranks: int, meeting: str, model: str, way: str) -> None:
    """Load on one rank, and print what it took."""
    import torch
    import torch.distributed as dist

    from rl_core.kernels import keep_freed_memory
    from rl_core.models.bundle import TextBundle
    from rl_core.models.loading import together
    from rl_core.ranks.rank_info import RankInfo
    from rl_core.runtime.peak_memory import peak_bytes
    from rl_core.train.fsdp import FSDPBackend
    from schemas.recipe import FSDPConfig, LrSchedulerConfig, ModelConfig, OptimizerConfig

    keep_freed_memory()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=num_ranks)
    # What imports take is none of the weights'.
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model))
    if way == "tight":
        together.HELD_SHARE = 0.0
    before, start = peak_bytes(torch.device("cpu")), time.perf_counter()
    cpu_start = time.process_time()
    make = TextBundle if way == "whole" else TextBundle.in_shards_of
    backend = FSDPBackend(
        make(model, ModelConfig(path=model)),
        FSDPConfig(),
        OptimizerConfig(),
        LrSchedulerConfig(),
        None,
        total_steps=1,
        seed=0,
        with_reference=False,
        rank_info=RankInfo(rank, num_ranks, "cpu", 1),
    )
    seconds, cpu_s = time.perf_counter() - start, time.process_time() - cpu_start
    grown = peak_bytes(torch.device("cpu")) - before
    parameters = sum(one.numel() for one in backend.policy.parameters())
    if rank == 0:
        print("parameters", parameters, flush=True)
    print("rank", json.dumps([rank, grown / parameters, seconds, cpu_s]), flush=True)


def measure(way: str, model: str, num_ranks: int) -> list[list[float]]:
    """Return rank, bytes a parameter, seconds and CPU seconds of each rank."""
    command = [sys.executable, "-m", "benchmarks.loading", "--model", model]
    command += ["--ranks", str(num_ranks), "--one", way]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = [line.split(" ", 1) for line in said.splitlines()]
    return sorted(json.loads(text) for kind, text in lines if kind == "rank")


def main() -> None:
    """Measure both ways, each in processes of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="360M", help="a name of benchmarks.random_models")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    parser.add_argument("--one", choices=WAYS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        with tempfile.TemporaryDirectory() as folder:
            context = multiprocessing.get_context("spawn")
            meeting = str(Path(folder) / "meeting")
            started = []
            for rank in range(asked.ranks):
                given = (rank, asked.ranks, meeting, asked.model, asked.one)
                started.append(context.Process(target=on_a_rank, args=given))
                started[-1].start()
            for process in started:
                process.join()
            sys.exit(max(abs(process.exitcode or 0) for process in started))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = RandomModels(Path(folder))[asked.model]
        for way, words in WAYS.items():
            for rank, grown, seconds, cpu_s in measure(way, model, asked.ranks):
                figures = f"{grown:.1f}", f"{seconds:.1f}", f"{cpu_s:.1f}"
                rows.append([words, f"{rank:.0f}", *figures])
    body = page.table(["way", "rank", "bytes a parameter", "seconds", "CPU seconds"], rows)
    print(body)
    if asked.write:
        command = f"`make bench-loading` with `--model {asked.model} --ranks {asked.ranks}`"
        page.write_section(TITLE, f"{command}\n\n{page.machine()}\n\n{body}")


if __name__ == "__main__":
    main()
