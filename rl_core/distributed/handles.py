"""Handles of siblings: calling a method runs it on the ranks, as its `@distributed(...)` says.

A type checker sees the class behind a handle through `typed`, and compares names and arguments with
it. What a method returns there is what one rank answers, which is right for `collect=RANK_ZERO` and
`REDUCE`; `per_rank` gives the type of `ALL`, and `submit` that of a call under way:

    version = handle.typed.weight_version()
    bytes_of_each = per_rank(handle.typed.peak_memory)()
    pending = submit(handle.typed.weight_version)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, ParamSpec, TypeVar, cast

from rl_core.data_proto import DataProto
from rl_core.distributed.collect import collect
from rl_core.distributed.refs import DataProtoRef, Stored
from rl_core.distributed.worker_group import WorkerGroup
from rl_core.ranks.dispatch import CallSpec, Collect, cut, spec_of

T_co = TypeVar("T_co", covariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")


class Remote(Generic[T_co]):
    """Handle of a sibling. `handle.method(...)` waits for the answer; `handle.method.submit(...)` does not."""

    def __init__(self, group: WorkerGroup, name: str, cls: type[T_co]) -> None:
        self._group, self._name, self._cls = group, name, cls

    @property
    def typed(self) -> T_co:
        """This handle, as a type checker should see it: with the methods of the class behind it."""
        return cast(T_co, self)

    def __getattr__(self, method: str) -> RemoteMethod:
        if method.startswith("_"):
            raise AttributeError(method)
        return RemoteMethod(self._group, self._name, method, spec_of(self._cls, method))


class RemoteMethod:
    """A method of a sibling."""

    def __init__(self, group: WorkerGroup, name: str, method: str, spec: CallSpec) -> None:
        self._group, self._name, self._method, self._spec = group, name, method, spec

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call and wait. Raises: the errors of `WorkerGroup.wait`, and DataProtoError for what cannot be cut."""
        return self.submit(*args, **kwargs).result()

    def submit(self, *args: Any, **kwargs: Any) -> PendingCall[Any]:
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


def submit(method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> PendingCall[R]:
    """Start a call of a handle's method without waiting. Raises: TypeError when it is no handle's."""
    if not isinstance(method, RemoteMethod):
        raise TypeError(f"submit needs a method of a handle, got {method!r}")
    return method.submit(*args, **kwargs)


def per_rank(method: Callable[P, R]) -> Callable[P, list[R]]:
    """A handle's method whose answer is that of every rank, in order.

    Raises: TypeError when it answers otherwise.
    """
    if not isinstance(method, RemoteMethod) or method._spec.collect is not Collect.ALL:
        raise TypeError(f"per_rank needs a handle's method with collect=ALL, got {method!r}")
    return cast(Callable[P, list[R]], method)


class PendingCall(Generic[R_co]):
    """A call under way."""

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

    def result(self) -> R_co:
        """Wait for all ranks. Returns: what the method's Collect mode says; joined answers stay with the workers."""
        answers = self._group.wait(self._label, self._futures)
        heard = [answers[rank] for rank in self._answering]
        if self._spec.collect is Collect.JOIN:
            return cast(R_co, DataProtoRef(heard, self._num_rows))
        return collect(self._spec, heard)


class _Shipping:
    """Puts each batch among the arguments into the object store once, for however many ranks it goes to."""

    def __init__(self) -> None:
        self._stored: dict[int, tuple[DataProto, Stored]] = {}

    def __call__(self, value: Any) -> Any:
        import ray

        if not isinstance(value, DataProto):
            return value
        if id(value) not in self._stored:
            self._stored[id(value)] = value, Stored(ray.put(value))
        return self._stored[id(value)][1]
