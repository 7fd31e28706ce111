"""Handles of siblings: calling a method runs it on the ranks, as declared by its
`@distributed(...)`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_core.data_proto import DataProto
from rl_core.distributed.collect import collect
from rl_core.distributed.refs import DataProtoRef, Stored
from rl_core.distributed.worker_group import WorkerGroup
from rl_core.ranks.dispatch import CallSpec, Collect, cut, spec_of


class Remote:
    """Handle of a sibling. `handle.method(...)` waits for the answer; `handle.method.submit(...)`
    does not."""

    def __init__(self, group: WorkerGroup, name: str, cls: type) -> None:
        self._group, self._name, self._cls = group, name, cls

    def __getattr__(self, method: str) -> RemoteMethod:
        if method.startswith("_"):
            raise AttributeError(method)
        return RemoteMethod(self._group, self._name, method, spec_of(self._cls, method))


class RemoteMethod:
    """A method of a sibling."""

    def __init__(self, group: WorkerGroup, name: str, method: str, spec: CallSpec) -> None:
        self._group, self._name, self._method, self._spec = group, name, method, spec

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method and wait. Raises: the errors of `WorkerGroup.wait`, and DataProtoError
        for arguments that cannot be cut."""
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: Any, **kwargs: Any) -> PendingCall:
        """Start the call. One group runs its calls in the order they were started."""
        plan = cut(self._spec, args, kwargs, self._group.topology)
        put = _Shipping()
        calls = {
            rank: (self._name, self._method, tuple(map(put, args)), {key: put(value) for key, value in kwargs.items()})
            for rank, (args, kwargs) in plan.calls.items()
        }
        stored = self._spec.collect is Collect.JOIN
        silent = {rank: call for rank, call in calls.items() if rank not in plan.answering}
        heard = {rank: call for rank, call in calls.items() if rank in plan.answering}
        futures = self._group.submit("call", heard, wanted=True, stored=stored)
        if silent:
            futures |= self._group.submit("call", silent, wanted=False, stored=stored)
        return PendingCall(
            self._group, f"{self._name}.{self._method}", self._spec, futures, plan.answering, plan.num_rows
        )


class PendingCall:
    """A call that has been started."""

    def __init__(
        self,
        group: WorkerGroup,
        label: str,
        spec: CallSpec,
        futures: Mapping[Any, int],
        answering: tuple[int, ...],
        num_rows: int | None,
    ) -> None:
        self._group, self._label, self._spec = group, label, spec
        self._futures, self._answering, self._num_rows = futures, answering, num_rows

    def result(self) -> Any:
        """Wait for all ranks.

        Returns: the result of the method's Collect mode; joined answers stay with the workers.
        """
        answers = self._group.wait(self._label, self._futures)
        heard = [answers[rank] for rank in self._answering]
        if self._spec.collect is Collect.JOIN:
            return DataProtoRef(heard, self._num_rows)
        return collect(self._spec, heard)


class _Shipping:
    """Puts each batch among the arguments into the object store once, for all ranks that get it."""

    def __init__(self) -> None:
        self._stored: dict[int, tuple[DataProto, Stored]] = {}

    def __call__(self, value: Any) -> Any:
        import ray

        if not isinstance(value, DataProto):
            return value
        if id(value) not in self._stored:
            self._stored[id(value)] = value, Stored(ray.put(value))
        return self._stored[id(value)][1]
