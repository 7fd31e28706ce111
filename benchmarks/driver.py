"""Cost of the driver's own work in a step as the ranks grow: advantages of all rows, and cutting
them for the ranks.

    python -m benchmarks.driver [--ranks 64,256,1024] [--rows 16] [--tokens 512]

Nothing else is run: no Ray, no model. Seconds are CPU time of this process on one thread; memory is
what the process grew by at its peak, over the tokens of the batch; through it go the columns by
token that it fetches, as a rollout has them, and the advantages that it sends.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time

GROUP = 8


def measure(ranks: int, rows: int, tokens: int) -> str:
    """Return a line of the table for a number of ranks, each with its rows."""
    import torch

    from rl_core.algorithms import algorithms
    from rl_core.data_proto import DataProto
    from rl_core.ranks.dispatch import CallSpec, Collect, Dispatch, Execute, cut
    from rl_core.ranks.rank_info import TrainTopology
    from rl_core.trainers.advantages import add_advantages

    torch.set_num_threads(1)
    num_rows = ranks * rows
    cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    generator = torch.Generator().manual_seed(0)
    batch = DataProto.from_dict(
        {
            "rewards": torch.rand(num_rows, generator=generator),
            "failed": torch.zeros(num_rows, dtype=torch.bool),
            "response_mask": torch.ones(num_rows, tokens, dtype=torch.long),
            "turn_rewards": torch.rand(num_rows, tokens, generator=generator),
        }
    )
    groups = torch.arange(num_rows) // GROUP
    spec = CallSpec(Dispatch.DP_SCATTER, Collect.REDUCE, Execute.ALL)
    topology = TrainTopology().resolve(ranks)
    columns = batch.tensor("response_mask"), batch.tensor("turn_rewards")
    before, start = _peak_bytes(), time.process_time()
    add_advantages(cls(config), batch, groups)
    advantages_s = time.process_time() - start
    start = time.process_time()
    cut(spec, (batch,), {}, topology)
    cut_s = time.process_time() - start
    grown = (_peak_bytes() - before) / (num_rows * tokens)
    moved = sum(one.nbytes for one in (*columns, batch.tensor("advantages")))
    per_rank = 1000 * (advantages_s + cut_s) / ranks
    return (
        f"{ranks:>6} {num_rows:>7} {advantages_s:>12.3f} {cut_s:>8.3f} {per_rank:>12.2f} "
        f"{grown:>14.1f} {moved / (num_rows * tokens):>8.1f}"
    )


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Measure each number of ranks in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="64,256,1024")
    parser.add_argument("--rows", type=int, default=16, help="of each rank")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(measure(asked.one, asked.rows, asked.tokens))
        return
    titles = f"{'ranks':>6} {'rows':>7} {'advantages s':>12} {'cut s':>8} {'ms per rank':>12}"
    print(f"{titles} {'bytes a token':>14} {'through':>8}")
    for ranks in asked.ranks.split(","):
        more = ["--one", ranks, "--rows", str(asked.rows), "--tokens", str(asked.tokens)]
        subprocess.run([sys.executable, "-m", "benchmarks.driver", *more], check=True)


if __name__ == "__main__":
    main()
