"""Placement blocks, `with placement(pool): x = remote(Cls, ...)`: siblings share one process per
device and see each other as objects."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar, cast

from rl_core.distributed.device_pool import DevicePool, Devices
from rl_core.distributed.handles import Handle, Remote
from rl_core.distributed.worker import Sibling
from rl_core.distributed.worker_group import WorkerGroup
from rl_core.errors import RLTrainError
from rl_core.ranks.rank_info import RankInfo, TrainTopology

T = TypeVar("T")

_open_block: ContextVar[Block | None] = ContextVar("placement_block", default=None)


class Block:
    """A share of a pool's devices, the processes on it, and the blocks inside it."""

    def __init__(
        self,
        pool: DevicePool,
        parent: Block | None,
        fraction: float,
        shared_workers: bool,
        topology: TrainTopology,
        beside: Block | None = None,
    ) -> None:
        self.pool, self.shared_workers = pool, shared_workers
        self._source: Devices | None = None
        if beside is None:
            self._source = pool.devices if parent is None else parent.devices
            self.devices = self._source.take(fraction)
        else:
            self.devices = beside.devices
        self.groups: list[WorkerGroup] = []
        self._inner: list[Block] = []
        self._closed = False
        try:
            self.topology = topology.resolve(len(self.devices))
        except BaseException:
            self._give_back()
            raise
        if parent is not None:
            parent._inner.append(self)

    @property
    def world_size(self) -> int:
        """Number of ranks of each of the block's components."""
        return len(self.devices)

    def group(self) -> WorkerGroup:
        """Return the processes for the next component: the siblings' own, or new ones if
        `shared_workers` is off."""
        if self.shared_workers and self.groups:
            return self.groups[0]
        pool = self.pool
        options = pool.add_workers(self.devices)
        infos = []
        for rank, number in enumerate(self.devices.numbers):
            infos.append(
                RankInfo(
                    rank,
                    self.world_size,
                    pool.device_kind,
                    pool.threads(number),
                    topology=self.topology,
                )
            )
        try:
            group = WorkerGroup.start(infos, options, pool.collective_timeout_s)
        except BaseException:
            pool.remove_workers(self.devices)
            raise
        self.groups.append(group)
        return group

    def all_groups(self) -> list[WorkerGroup]:
        """Return the groups of processes of this block and of inner blocks."""
        return self.groups + [group for block in self._inner for group in block.all_groups()]

    def pids(self) -> list[int]:
        """Return the process ids of all workers, including those of inner blocks."""
        pids = [pid for group in self.groups for pid in group.pids()]
        return pids + [pid for block in self._inner for pid in block.pids()]

    def close(self) -> None:
        """Stop the worker processes, including those of inner blocks, and free the devices."""
        if self._closed:
            return
        self._closed = True
        for block in self._inner:
            block.close()
        for group in self.groups:
            group.close()
            self.pool.remove_workers(self.devices)
        self._give_back()

    def _give_back(self) -> None:
        if self._source is not None:
            self._source.give_back(self.devices)


@contextmanager
def renewed(block: Block) -> Iterator[Block]:
    """Open a block again after its processes were ended, also dead or hung ones; `remote` inside it
    builds components in new ones, on the same devices."""
    for group in block.groups:
        group.close()
        block.pool.remove_workers(block.devices)
    block.groups = []
    token = _open_block.set(block)
    try:
        yield block
    finally:
        _open_block.reset(token)


@contextmanager
def placement(
    pool: DevicePool,
    fraction: float = 1.0,
    shared_workers: bool = True,
    topology: TrainTopology | None = None,
    beside: Block | None = None,
) -> Iterator[Block]:
    """Open a block on a share of the pool's devices; `remote` inside it builds components there.

    A block opened inside another one of the same pool takes its share of that block's devices.
    Blocks opened one after the other take disjoint devices. The workers outlive the `with`;
    `Block.close` stops them.

    Args: fraction: share of the devices, a whole number of them. shared_workers: siblings share a
    process per device and get each other as plain objects; otherwise each `remote` starts its own
    processes. topology: sizes of the parallel dimensions over the block's ranks; unset is
    data-parallel. beside: a block whose devices this one also uses, with further processes on each
    (`workers_per_device`), instead of a share of the free ones.

    Raises: RecipeError when fraction, free devices or topology do not fit.
    """
    outer = _open_block.get()
    parent = outer if outer is not None and outer.pool is pool else None
    block = Block(pool, parent, fraction, shared_workers, topology or TrainTopology(), beside)
    token = _open_block.set(block)
    try:
        yield block
    except BaseException:
        block.close()
        raise
    finally:
        _open_block.reset(token)


def remote(factory: Callable[..., T], *args: object, **kwargs: object) -> Remote[T]:
    """Build a component on every rank of the current block.

    Args: factory: a class, or a classmethod of it that makes an instance (`remote(Cls.from_recipe,
    ...)`). Handles among the arguments, also within lists, tuples and dicts, become the siblings
    themselves if they share the process; the handle of a component elsewhere stays a handle, whose
    methods the worker may call.
    """
    cls = factory if isinstance(factory, type) else getattr(factory, "__self__", None)
    if not (isinstance(cls, type) and (factory is cls or inspect.ismethod(factory))):
        raise TypeError(
            f"remote needs a class or a classmethod that makes an instance, got {factory!r}"
        )
    block = _open_block.get()
    if block is None:
        raise RLTrainError(f"remote({cls.__name__}) needs a surrounding `with placement(pool):`")
    return cast(T, _built(block.group(), factory, cls, args, kwargs))


def remote_everywhere(block: Block, factory: type[T], *args: object) -> list[Remote[T]]:
    """Build a component in all worker processes of a block and of the blocks inside it, next to
    what is there.

    Returns: a handle for each group of processes.
    """
    return [cast(T, _built(group, factory, factory, args, {})) for group in block.all_groups()]


def _built(
    group: WorkerGroup,
    factory: Callable[..., T],
    cls: type[T],
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> Handle[T]:
    """Build a component in the processes of a group."""
    name = f"{cls.__name__}-{group.num_siblings}"
    group.num_siblings += 1
    built = _as_siblings(args, group), _as_siblings(kwargs, group)
    label = f"{name}.{'__init__' if factory is cls else factory.__name__}"
    group.wait(
        label, group.submit("build", {rank: (name, factory, *built) for rank in group.ranks})
    )
    return Handle(group, name, cls)


def _as_siblings(value: object, group: WorkerGroup) -> object:
    if isinstance(value, Handle):
        if value._group is group:
            return Sibling(value._name)
        return value
    if type(value) is tuple or type(value) is list:
        return type(value)(_as_siblings(entry, group) for entry in value)
    if type(value) is dict:
        return {key: _as_siblings(entry, group) for key, entry in value.items()}
    return value
