"""Generalised advantage estimation over 1024 rows x 768 actions: vectorised, and as a Python loop
over time.

    python -m benchmarks.gae [--rows 1024] [--actions 768] [--repeats 15]

The loop is the usual one: every step handles one action of all rows. Both run in one process, in
turn, on the same numbers; seconds are the best of the repeats of the process's own CPU time on one
thread, which other work on the machine does not lengthen.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from rl_core.algorithms.advantages.gae import gae

GAMMA, LAM = 0.99, 0.95


def looped(rewards_BT: Tensor, values_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Advantages and returns, [B, T], one action of all rows after the other, with the mask as a
    factor."""
    following_B = next_value_B = torch.zeros(len(rewards_BT))
    mask_BT = mask_BT.float()
    columns = []
    for t in reversed(range(rewards_BT.shape[1])):
        kept_B, skipped_B = mask_BT[:, t], 1.0 - mask_BT[:, t]
        delta_B = rewards_BT[:, t] + GAMMA * next_value_B - values_BT[:, t]
        following_B = (delta_B + GAMMA * LAM * following_B) * kept_B + following_B * skipped_B
        next_value_B = values_BT[:, t] * kept_B + next_value_B * skipped_B
        columns.append(following_B)
    advantages_BT = torch.stack(columns[::-1], dim=1) * mask_BT
    return advantages_BT, (advantages_BT + values_BT) * mask_BT


def best(run: Callable[[], object], repeats: int) -> float:
    """The shortest CPU time of a run, in seconds."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def main() -> None:
    """Print both times for replies without gaps and for replies with observations in between."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--actions", type=int, default=768)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    rewards_BT, values_BT = torch.randn(2, args.rows, args.actions)
    lengths_B1 = torch.randint(1, args.actions + 1, (args.rows, 1))
    replies_BT = torch.arange(args.actions) < lengths_B1
    masks = {
        "replies": replies_BT,
        "with gaps": replies_BT & (torch.rand(args.rows, args.actions) < 0.8),
    }
    print(f"{args.rows} rows x {args.actions} actions, float32, one thread")
    for name, mask_BT in masks.items():
        ours = partial(gae, rewards_BT, values_BT, mask_BT, gamma=GAMMA, lam=LAM)
        vectorised = best(ours, args.repeats)
        loop = best(partial(looped, rewards_BT, values_BT, mask_BT), max(args.repeats // 3, 3))
        pairs = zip(
            gae(rewards_BT, values_BT, mask_BT, gamma=GAMMA, lam=LAM),
            looped(rewards_BT, values_BT, mask_BT),
            strict=True,
        )
        apart = max(float((one - other).abs().max()) for one, other in pairs)
        print(
            f"{name:10} loop {1e3 * loop:7.1f} ms   vectorised {1e3 * vectorised:6.2f} ms   "
            f"{loop / vectorised:5.1f} times faster, largest difference {apart:.1e}"
        )


if __name__ == "__main__":
    main()
