"""Cost of the driver's own work in a step of GRPO as the ranks grow, and what passes through it.

    python -m benchmarks.driver [--ranks 64,256,1024] [--rows 16] [--tokens 512]

The rows of each rank lie in the object store as an engine's answer does (a private Ray cluster, no
workers, no model). The driver reads them as `Trainer.step` does without scorers: groups,
advantages, metrics of replies, dealing the groups, cutting the batch for the ranks, and what they
answer. Seconds are CPU time of this process on one thread; memory is what the process grew by at
its peak meanwhile, over the tokens of the padded replies. What passes through is counted where
columns are fetched or answered, and in the shards that the ranks are sent: bytes a token for
columns by action, bytes a row for all others, names included. The thread that writes rollouts is
not in it.
"""

from __future__ import annotations

import argparse
import itertools
import pickle
import resource
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rl_core.data_proto import DataProto
    from rl_core.train.result import TrainStepResult

GROUP_SIZE = 8


class Passing:
    """Bytes that pass through the driver, by action and otherwise.

    Args: tokens: width of a padded row.
    """

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.by_token = self.by_row = 0

    def count(self, value: Any) -> None:
        """Count a tensor, or all columns of a batch."""
        import torch

        if isinstance(value, torch.Tensor):
            if value.dim() == 2 and value.shape[1] == self.tokens:
                self.by_token += value.nbytes
            else:
                self.by_row += value.nbytes
            return
        for tensor in () if value.batch is None else value.batch.values():
            self.count(tensor)
        for column in value.non_tensor_batch.values():
            self.by_row += len(pickle.dumps(column))


def answer_of(rank: int, rows: int, tokens: int) -> DataProto:
    """Return what an engine answers with on one rank, without texts and token ids."""
    import torch

    from rl_core.data_proto import DataProto
    from rl_core.rollout.sample_ids import id_columns

    generator = torch.Generator().manual_seed(rank)
    lengths = torch.randint(1, tokens + 1, (rows,), generator=generator)
    lengths[0] = tokens
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    first = rank * rows
    uids = [f"train-{(first + row) // GROUP_SIZE}" for row in range(rows)]
    return DataProto.from_dict(
        {
            "rewards": torch.rand(rows, generator=generator),
            "failed": torch.zeros(rows, dtype=torch.bool),
            "response_mask": mask,
            "turn_rewards": torch.rand(rows, tokens, generator=generator) * mask,
            "num_tokens": lengths,
            "last_reply_tokens": lengths,
            "num_turns": torch.ones(rows, dtype=torch.long),
        },
        {
            **id_columns(uids),
            "uid": uids,
            "stop_reason": ["eos"] * rows,
            "env_class": ["gsm8k"] * rows,
            "env_metrics": [{"correct": 1.0} for _ in range(rows)],
            "failed_call": [None] * rows,
            "timed_out": [False] * rows,
            "error": [None] * rows,
        },
    )


class Ranks:
    """Stands for the ranks that train: cuts for them, and answers as they do."""

    def __init__(self, num_ranks: int, tokens: int) -> None:
        self.num_ranks, self.tokens = num_ranks, tokens
        self.shards: list[Any] = []
        self.answered: list[Any] = []

    def train(self, batch: Any) -> TrainStepResult:
        """Cut a batch, and return its rows' log-probabilities."""
        import torch

        from rl_core.ranks.dispatch import CallSpec, Collect, Dispatch, cut
        from rl_core.ranks.rank_info import TrainTopology
        from rl_core.train.result import TrainStepResult

        spec = CallSpec(Dispatch.DP_SCATTER, Collect.REDUCE)
        calls = cut(spec, (batch,), {}, TrainTopology().resolve(self.num_ranks)).calls
        self.shards = [arguments[0] for arguments, _ in calls.values()]
        rows = len(batch) // self.num_ranks
        self.answered = [torch.zeros(rows, self.tokens) for _ in range(self.num_ranks)]
        return TrainStepResult(0.0, 0.0, 0.0, (), 0, {}, tuple(self.answered))

    def measure(self, batch: Any) -> Any:
        """Not asked for by this algorithm."""
        raise NotImplementedError


def step(parts: list[Any], tokens: int) -> tuple[list[float], Ranks]:
    """Do a step's work. Returns: seconds of advantages, metrics, and dealing and cutting; what the
    ranks got and gave."""
    from rl_core.algorithms import algorithms
    from rl_core.algorithms.advantages import group_ids
    from rl_core.distributed import DataProtoRef
    from rl_core.rollout.sample_ids import GROUP
    from rl_core.trainers.advantages import add_advantages
    from rl_core.trainers.dealing import DealingStack
    from rl_core.trainers.length_penalty import shape_overlong
    from rl_core.trainers.metrics.describe import describe_replies

    cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    times = [time.process_time()]
    batch = DataProtoRef(parts)
    shape_overlong(batch, None, tokens)
    add_advantages(cls(config), batch, group_ids(batch.non_tensor_batch[GROUP].tolist()))
    times.append(time.process_time())
    describe_replies(batch, {})
    times.append(time.process_time())
    ranks = Ranks(len(parts), tokens)
    DealingStack(ranks, len(parts)).train(batch)
    times.append(time.process_time())
    return [end - start for start, end in itertools.pairwise(times)], ranks


def measure(ranks: int, rows: int, tokens: int) -> str:
    """Return a line of the table for a number of ranks, each with its rows."""
    import torch

    from rl_core.distributed import refs

    torch.set_num_threads(1)
    parts = [refs.store(answer_of(rank, rows, tokens)) for rank in range(ranks)]
    step(parts[:1], tokens)
    fetched, sent, get = Passing(tokens), Passing(tokens), refs._get

    def counting(wanted: Any, what: Any) -> Any:
        found = get(wanted, what)
        for piece in found:
            fetched.count(piece)
        return found

    refs._get = counting
    before = _peak_bytes()
    seconds, told = step(parts, tokens)
    num_rows = ranks * rows
    grown = (_peak_bytes() - before) / (num_rows * tokens)
    for part in parts:
        fetched.count(part.narrow)
    for answer in told.answered:
        fetched.count(answer)
    for shard in told.shards:
        _count_sent(shard, sent)
    through = [one / (num_rows * tokens) for one in (fetched.by_token, sent.by_token)]
    through += [one / num_rows for one in (fetched.by_row, sent.by_row)]
    advantages_s, metrics_s, cut_s = seconds
    return (
        f"{ranks:>6} {num_rows:>7} {advantages_s:>12.3f} {metrics_s:>10.3f} {cut_s:>6.3f} "
        f"{1000 * sum(seconds) / ranks:>12.2f} {grown:>10.1f} "
        + " ".join(f"{one:>9.1f}" for one in through)
    )


def _count_sent(shard: Any, sent: Passing) -> None:
    """Count the columns that the driver sends to one rank with its shard."""
    from rl_core.data_proto import DataProto

    for part, _, _ in shard.spans:
        sent.count(part.narrow)
    for layer in shard.layers:
        for piece in [layer] if isinstance(layer, DataProto) else layer.numbers:
            sent.count(piece)


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
        from rl_core.distributed import ray_cluster

        with ray_cluster(None, 1, "cpu"):
            print(measure(asked.one, asked.rows, asked.tokens), flush=True)
        return
    titles = f"{'ranks':>6} {'rows':>7} {'advantages s':>12} {'metrics s':>10} {'deal s':>6}"
    titles += f" {'ms per rank':>12} {'memory/tok':>10}"
    for title in ("fetch/tok", "sent/tok", "fetch/row", "sent/row"):
        titles += f" {title:>9}"
    print(titles, flush=True)
    for ranks in asked.ranks.split(","):
        more = ["--one", ranks, "--rows", str(asked.rows), "--tokens", str(asked.tokens)]
        subprocess.run([sys.executable, "-m", "benchmarks.driver", *more], check=True)


if __name__ == "__main__":
    main()
