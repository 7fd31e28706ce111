"""Small components that workers build in the tests beside this file."""

from __future__ import annotations

import os
import resource
import signal
import time
from typing import Any

import psutil
import torch
import torch.distributed as dist

from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.data_proto import DataProto
from rl_core.distributed import refs
from rl_core.errors import DataError, RLTrainError
from rl_core.ranks.dispatch import Collect, Dispatch, Execute, distributed, num_real_rows
from rl_core.ranks.rank_info import RankInfo

WIDTH = 1000
"""Numbers in a row of a wide column."""


class Counter:
    """A number that siblings share."""

    def __init__(self, start: int) -> None:
        self.value = start

    @classmethod
    def from_text(cls, text: str) -> Counter:
        """Another way to make one."""
        return cls(int(text))

    def pid(self) -> int:
        return os.getpid()

    def gradient(self) -> None:
        """A forward and a backward pass."""
        weight = torch.ones(4, 4, requires_grad=True)
        torch.matmul(weight, weight).sum().backward()

    def get(self) -> int:
        return self.value


def count_fetches() -> list[int]:
    """Bytes of tensors that this process fetches by reference from now on, an entry per fetch."""
    sizes: list[int] = []
    get = refs._get

    def counting(pieces: list[Any], what: Any) -> list[DataProto]:
        found = get(pieces, what)
        tensors = [
            one for piece in found if piece.batch is not None for one in piece.batch.values()
        ]
        sizes.append(sum(tensor.nbytes for tensor in tensors))
        return found

    refs._get = counting
    return sizes


class Probe:
    """Says what reached it."""

    needs_rank_info = True

    def __init__(
        self, counter: Any, others: dict[str, list[Any]] | None = None, *, rank_info: RankInfo
    ) -> None:
        self.counter, self.others, self.info = counter, others or {}, rank_info
        self.fetches = count_fetches()

    def pid(self) -> int:
        return os.getpid()

    def place(self) -> tuple[int, int, int, int, int]:
        info = self.info
        return info.rank, info.dp_rank, info.pp_rank, info.sp_rank, info.tp_rank

    def threads(self) -> int:
        return torch.get_num_threads()

    def add(self, number: int) -> int:
        """Change the sibling, by plain attribute access."""
        self.counter.value += number
        return self.counter.value

    def ask_counter(self) -> Any:
        """Call the counter, wherever it is."""
        return self.counter.get()

    def count_others(self) -> list[int]:
        return [other.value for other in self.others["counters"]]

    @distributed(execute=Execute.RANK_ZERO)
    def alone(self) -> int:
        return self.info.rank

    @distributed(Dispatch.SCATTER)
    def scattered(self, rows: DataProto, names: list[str]) -> tuple[int, list[int], list[str]]:
        return self.info.rank, rows.tensor("row").tolist(), names

    @distributed(Dispatch.DP_SCATTER)
    def per_replica(self, rows: DataProto) -> tuple[int, list[int]]:
        return self.info.rank, rows.tensor("row").tolist()

    @distributed(Dispatch.DP_SCATTER, Collect.ALL)
    def sum_over_siblings(self, rows: DataProto) -> float:
        """Every sibling must hold the same rows and take part."""
        total = rows.tensor("row").sum()
        dist.all_reduce(total)
        return float(total)

    @distributed(Dispatch.DP_SCATTER_HEAD)
    def heads(self, rows: DataProto) -> tuple[int, list[int]]:
        return self.info.rank, rows.tensor("row").tolist()

    @distributed(Dispatch.DP_SCATTER, Collect.JOIN)
    def answer(self, rows: DataProto, per_row: int) -> DataProto:
        """So many answers to a row, group by group, with a wide column and narrow ones."""
        many = rows.repeat(per_row)
        row = many.tensor("row")
        tensors = {
            "row": row,
            "wide": row[:, None] * torch.ones(1, WIDTH),
            "rewards": row.float() / 2,
        }
        names = [f"row {number}" for number in row.tolist()]
        metrics = {"rank": Metric(MetricKind.MAX, float(self.info.rank), 1)}
        return DataProto.from_dict(tensors, {"name": names}, {"metrics": metrics})

    @distributed(Dispatch.DP_SCATTER, Collect.REDUCE)
    def measure(self, rows: DataProto) -> dict[str, Metric]:
        """Metrics of every kind over the rows that are no copies."""
        values = rows.tensor("row")[: num_real_rows(rows)].double()
        count = len(values)
        lowest, highest = (float(values.min()), float(values.max())) if count else (0.0, 0.0)
        return {
            "mean": Metric(MetricKind.MEAN, float(values.sum()), count),
            "sum": Metric(MetricKind.SUM, float(values.sum()), count),
            "max": Metric(MetricKind.MAX, highest, count),
            "min": Metric(MetricKind.MIN, lowest, count),
            "last": Metric(MetricKind.LAST, float(values[-1]) if count else 0.0, count),
        }

    @distributed(Dispatch.DP_SCATTER)
    def consume(self, rows: DataProto) -> tuple[list[int], float]:
        """The rows, and the sum of their wide column."""
        return rows.tensor("row").tolist(), float(rows.tensor("wide").sum())

    @distributed(Dispatch.DP_SCATTER)
    def columns(self, rows: DataProto) -> list[str]:
        assert rows.batch is not None
        return sorted([*map(str, rows.batch.keys()), *rows.non_tensor_batch])

    def fetched(self) -> int:
        """Bytes this process has fetched by reference."""
        return sum(self.fetches)


class Saboteur:
    """Fails in every way a worker can."""

    needs_rank_info = True

    def __init__(self, *, rank_info: RankInfo, fail_at: int | None = None) -> None:
        if fail_at == rank_info.rank:
            raise KeyError("no such setting")
        self.rank = rank_info.rank

    def meet(self) -> float:
        """A collective that every rank takes part in."""
        total = torch.ones(1)
        dist.all_reduce(total)
        return float(total)

    def die_in_collective(self, rank: int, after_s: float) -> float:
        """One rank ends by SIGKILL while the others wait for it."""
        if self.rank == rank:
            time.sleep(after_s)
            os.kill(os.getpid(), signal.SIGKILL)
        return self.meet()

    def stay_away(self, rank: int, seconds: float) -> float:
        """One rank never comes to the collective."""
        if self.rank == rank:
            time.sleep(seconds)
        return self.meet()

    def stay_away_from_subgroup(self, rank: int, seconds: float) -> float:
        """The same within a device mesh's own group."""
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("dp", "tp"))
        if self.rank == rank:
            time.sleep(seconds)
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh["tp"].get_group())
        return float(total)

    def stop(self, rank: int) -> float:
        """One rank is stopped by a signal, as a suspended or swapping machine is."""
        if self.rank == rank:
            os.kill(os.getpid(), signal.SIGSTOP)
        return self.meet()

    def never_end(self) -> None:
        """No collective, no end."""
        os.kill(os.getpid(), signal.SIGSTOP)

    def fail(self, rank: int) -> None:
        """An error that is no project error, and cannot be pickled."""
        if self.rank == rank:
            raise Unpicklable("two", "arguments")

    def refuse(self, rank: int) -> None:
        """One of the project's own errors."""
        if self.rank == rank:
            raise DataError("train.jsonl:17 field reward_spec: missing ground_truth")

    def raise_kind(self, kind: type[RLTrainError], after: BaseException | None) -> None:
        """One of the project's own errors, on every rank. Args: after: what it came of."""
        raise kind("the disk is full") from after

    def exhaust(self, rank: int, how: str) -> None:
        """Run out of memory for real, under a limit on the address space."""
        if self.rank != rank:
            return
        used = psutil.Process().memory_info().vms
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**28, before[1]))
        try:
            torch.ones(2**32) if how == "torch" else bytearray(2**33)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)


class Unpicklable(Exception):
    """Cannot be built again from its own arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


class Talker:
    """Prints."""

    needs_rank_info = True

    def __init__(self, *, rank_info: RankInfo) -> None:
        self.info = rank_info

    def say(self, text: str) -> None:
        print(f"{text} from {self.info.rank}")
