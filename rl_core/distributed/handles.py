"""Handles of siblings: calling a method runs it on the ranks, as its `@distributed(...)` says.

To a type checker `Remote[Engine]` is an `Engine`: names and arguments of a call are compared with
the class behind the handle. The type of an answer is what one rank gives, which is right for
`collect=RANK_ZERO` and `REDUCE`; `per_rank` gives that of `ALL`. Batches are answered and passed on
as a `DataProtoRef`, which a worker's own signature does not say: a handle that is called with them
is a `Remote` of no named class, which is not checked.

    handle: Remote[Receiver]
    version = handle.weight_version()
    distributions = per_rank(handle.probe)()
    pending = submit(handle.weight_version)  # does not wait
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Generic, ParamSpec, TypeAlias, TypeVar, cast

from rl_core.data_proto import DataProto
from rl_core.distributed.collect import collect
from rl_core.distributed.refs import DataProtoRef, Part, Stored
from rl_core.distributed.worker_group import WorkerGroup
from rl_core.ranks.dispatch import CallSpec, Collect, cut, spec_of

if TYPE_CHECKING:
    from ray import ObjectRef

TIMES_ASKED = 3
"""Number of times that a process is asked before it counts as gone."""

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
P = ParamSpec("P")


class Handle(Generic[T]):
    """A `Remote[T]` at run time. `handle.method(...)` waits for the answer."""

    def __init__(self, group: WorkerGroup, name: str, cls: type[T]) -> None:
        self._group, self._name, self._cls = group, name, cls

    def __getattr__(self, method: str) -> RemoteMethod:
        if method.startswith("_"):
            raise AttributeError(method)
        return RemoteMethod(self._group, self._name, method, spec_of(self._cls, method))


if TYPE_CHECKING:
    Remote: TypeAlias = Annotated[T, "a handle of it on the ranks of a block"]
else:
    Remote = Handle


class RemoteMethod:
    """A method of a sibling."""

    def __init__(self, group: WorkerGroup, name: str, method: str, spec: CallSpec) -> None:
        self._group, self._name, self._method, self._spec = group, name, method, spec

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the method and wait. Raises: the errors of `WorkerGroup.wait`, and DataProtoError
        for arguments that cannot be cut."""
        return submit(self, *args, **kwargs).result()

    def start(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> PendingCall[Any]:
        """The call, under way."""
        plan = cut(self._spec, args, dict(kwargs), self._group.topology)
        put = _Shipping()
        calls = {}
        for rank, (own, named) in plan.calls.items():
            put_named = {key: put(value) for key, value in named.items()}
            calls[rank] = (self._name, self._method, tuple(map(put, own)), put_named)
        stored = self._spec.collect is Collect.JOIN
        silent = {}
        for rank, call in calls.items():
            if rank not in plan.answering:
                silent[rank] = call
        heard = {rank: call for rank, call in calls.items() if rank in plan.answering}
        futures = self._group.submit("call", heard, wanted=True, stored=stored)
        if silent:
            futures |= self._group.submit("call", silent, wanted=False, stored=stored)
        return PendingCall(
            self._group,
            f"{self._name}.{self._method}",
            self._spec,
            futures,
            plan.answering,
            plan.num_rows,
        )

    @property
    def answers_per_rank(self) -> bool:
        """True if the answer is a list with one entry per rank."""
        return self._spec.collect is Collect.ALL


def submit(method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> PendingCall[R]:
    """Start a call of a handle's method without waiting. One group runs its calls in the order they
    were started.

    Raises: TypeError when it is no handle's method, and DataProtoError for what cannot be cut.
    """
    if not isinstance(method, RemoteMethod):
        raise TypeError(f"submit needs a method of a handle, got {method!r}")
    return method.start(args, kwargs)


def per_rank(method: Callable[P, R]) -> Callable[P, list[R]]:
    """A handle's method whose answer is that of every rank, in order.

    Raises: TypeError when it answers otherwise.
    """
    if not isinstance(method, RemoteMethod) or not method.answers_per_rank:
        raise TypeError(f"per_rank needs a handle's method with collect=ALL, got {method!r}")
    return cast(Callable[P, list[R]], method)


def world_size_of(handle: object) -> int:
    """Return the number of ranks of the component behind a handle. Raises: TypeError if it is no
    handle."""
    if not isinstance(handle, Handle):
        raise TypeError(f"world_size_of needs a handle, got {handle!r}")
    return handle._group.world_size


def is_alive(handle: object) -> bool:
    """Return False if a process of a component does not answer: it ended, or stands still.

    Raises: TypeError if it is no handle.
    """
    if not isinstance(handle, Handle):
        raise TypeError(f"is_alive needs a handle, got {handle!r}")
    group: WorkerGroup = handle._group
    return all(
        any(group.status(rank) is not None for _ in range(TIMES_ASKED)) for rank in group.ranks
    )


class PendingCall(Generic[R_co]):
    """A call that has been started."""

    def __init__(
        self,
        group: WorkerGroup,
        label: str,
        spec: CallSpec,
        futures: Mapping[ObjectRef[object], int],
        answering: tuple[int, ...],
        num_rows: int | None,
    ) -> None:
        self._group, self._label, self._spec = group, label, spec
        self._futures, self._answering, self._num_rows = futures, answering, num_rows

    def result(self) -> R_co:
        """Wait for all ranks.

        Returns: the result of the method's Collect mode; joined answers stay with the workers.
        """
        answers = self._group.wait(self._label, self._futures)
        heard = [answers[rank] for rank in self._answering]
        if self._spec.collect is Collect.JOIN:
            return cast(R_co, DataProtoRef(cast("list[Part]", heard), self._num_rows))
        return cast(R_co, collect(self._spec, heard))


class _Shipping:
    """Puts each batch among the arguments into the object store once, for all ranks that get it."""

    def __init__(self) -> None:
        self._stored: dict[int, tuple[DataProto, Stored]] = {}

    def __call__(self, value: object) -> object:
        import ray

        if not isinstance(value, DataProto):
            return value
        if id(value) not in self._stored:
            self._stored[id(value)] = value, Stored(ray.put(value))
        return self._stored[id(value)][1]
