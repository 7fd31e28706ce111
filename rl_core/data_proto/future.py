"""A batch that is still being made elsewhere, and is fetched only by whoever needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.proto import DataProto


@dataclass
class DataProtoFuture:
    """The answers of several workers, joined by `collect_fn` and cut by `dispatch_fn` where `get` is called.

    `futures` are Ray object references or `concurrent.futures.Future`s. The driver passes it on without fetching.
    """

    collect_fn: Callable[[list[Any]], Any]
    futures: list[Any]
    dispatch_fn: Callable[[Any], Any] | None = None

    @staticmethod
    def concat(data: Sequence[Any]) -> DataProtoFuture:
        """The rows of all answers, in order."""
        return DataProtoFuture(collect_fn=DataProto.concat, futures=list(data))

    def chunk(self, chunks: int) -> list[DataProtoFuture]:
        """Futures of equal consecutive parts."""
        return [
            DataProtoFuture(self.collect_fn, self.futures, partial(_chunk, index=index, chunks=chunks))
            for index in range(chunks)
        ]

    def get(self) -> Any:
        """Wait and fetch. Raises: what a worker raised, or DataProtoError for an answer that is no DataProto."""
        waiting = [future if hasattr(future, "result") else future.future() for future in self.futures]
        answers = [future.result() for future in waiting]
        for number, answer in enumerate(answers):
            if not isinstance(answer, DataProto):
                raise DataProtoError(f"answer {number} is a {type(answer).__name__}, not a DataProto")
        whole = self.collect_fn(answers)
        return whole if self.dispatch_fn is None else self.dispatch_fn(whole)


def _chunk(whole: DataProto, index: int, chunks: int) -> DataProto:
    return whole.chunk(chunks)[index]
