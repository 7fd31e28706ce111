"""Batches that are still being made, by Ray or by `concurrent.futures`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from rl_core.data_proto.errors import DataProtoError
from rl_core.data_proto.proto import DataProto


@runtime_checkable
class Future(Protocol):
    """A future of `concurrent.futures`."""

    def result(self) -> object:
        """Wait for the answer."""
        ...


class ObjectReference(Protocol):
    """A future of Ray."""

    def future(self) -> Future:
        """The same for `concurrent.futures`."""
        ...


@dataclass
class DataProtoFuture:
    """Answers of several workers, joined by `collect_fn` and cut by `dispatch_fn` where `get` is
    called.

    `futures` are Ray object references or `concurrent.futures.Future`s. The driver passes it on
    without fetching.
    """

    collect_fn: Callable[[list[DataProto]], DataProto]
    futures: list[Future | ObjectReference]
    dispatch_fn: Callable[[DataProto], DataProto] | None = None

    @staticmethod
    def concat(data: Sequence[Future | ObjectReference]) -> DataProtoFuture:
        """Return the rows of all answers, in order."""
        return DataProtoFuture(collect_fn=DataProto.concat, futures=list(data))

    def chunk(self, chunks: int) -> list[DataProtoFuture]:
        """Return futures of equal consecutive parts."""
        parts: list[DataProtoFuture] = []
        for index in range(chunks):
            parts.append(
                DataProtoFuture(
                    self.collect_fn, self.futures, partial(_chunk, index=index, chunks=chunks)
                )
            )
        return parts

    def get(self) -> DataProto:
        """Wait and fetch. Raises: the error of a worker, or DataProtoError for an answer that is
        not a DataProto."""
        waiting = [
            future if isinstance(future, Future) else future.future() for future in self.futures
        ]
        answers: list[DataProto] = []
        for number, future in enumerate(waiting):
            answer = future.result()
            if not isinstance(answer, DataProto):
                raise DataProtoError(
                    f"answer {number} is a {type(answer).__name__}, not a DataProto"
                )
            answers.append(answer)
        whole = self.collect_fn(answers)
        if self.dispatch_fn is None:
            return whole
        return self.dispatch_fn(whole)


def _chunk(whole: DataProto, index: int, chunks: int) -> DataProto:
    return whole.chunk(chunks)[index]
