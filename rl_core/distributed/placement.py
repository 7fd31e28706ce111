"""`with placement(pool): x = remote(Cls, ...)`: siblings share one process per device and see each other as objects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from rl_core.dispatch import cut, spec_of
from rl_core.distributed.collect import collect
from rl_core.distributed.device_pool import DevicePool
from rl_core.distributed.worker import DeviceWorker, Sibling
from rl_core.errors import RLTrainError, WorkerDied
from rl_core.rank_info import TrainTopology

_block: ContextVar[WorkerGroup] = ContextVar("placement_block")


class WorkerGroup:
    """The worker processes of one placement block, one per device, in rank order."""

    def __init__(self, pool: DevicePool, num_devices: int) -> None:
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self.pool, self.devices = pool, pool.take(num_devices)
        self.num_siblings = 0
        bundle = {"CPU": 1.0} | ({"GPU": 1.0} if pool.device_kind == "cuda" else {})
        self.placement_group = placement_group([dict(bundle) for _ in self.devices], strategy="PACK")
        ray.get(self.placement_group.ready())
        actor_cls = ray.remote(DeviceWorker)
        self.actors: list[Any] = [
            actor_cls.options(
                num_cpus=1,
                num_gpus=bundle.get("GPU", 0),
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self.placement_group, rank),
            ).remote(rank, num_devices, pool.device_kind, pool.threads_per_device)
            for rank in range(num_devices)
        ]
        host, port, _ = self.run("address", [((), {})])[0]
        self.run("join_group", [((host, port), {})] * num_devices)

    @property
    def world_size(self) -> int:
        return len(self.devices)

    def pids(self) -> list[int]:
        """Process ids of the workers, in rank order."""
        return [answer[2] for answer in self.run("address", [((), {})] * self.world_size)]

    def run(self, method: str, calls: list[tuple[tuple[Any, ...], dict[str, Any]]]) -> list[Any]:
        """Call the first `len(calls)` workers and wait. Raises: WorkerDied, or the worker's own error as itself."""
        from ray.exceptions import RayActorError, RayTaskError

        futures = [
            getattr(actor, method).remote(*args, **kwargs)
            for actor, (args, kwargs) in zip(self.actors, calls, strict=False)
        ]
        try:
            return _gather(futures)
        except RayTaskError as error:
            if isinstance(error.cause, RLTrainError):
                raise error.cause from error
            raise
        except RayActorError as error:
            raise WorkerDied(f"a worker process ended during {method}: {error}") from error

    def close(self) -> None:
        """End the worker processes and free their devices."""
        import ray
        from ray.util.placement_group import remove_placement_group

        for actor in self.actors:
            ray.kill(actor)
        remove_placement_group(self.placement_group)
        self.pool.release(self.devices)


class Remote:
    """Handle of a sibling: calling a method runs it on the ranks, as its dispatch mode says."""

    def __init__(self, group: WorkerGroup, name: str, cls: type) -> None:
        self._group, self._name, self._cls = group, name, cls

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        spec = spec_of(self._cls, method)

        def call(*args: Any, **kwargs: Any) -> Any:
            shards = cut(spec, args, kwargs, TrainTopology(dp_size=self._group.world_size))
            wrapped = [((self._name, method, a, k), {}) for a, k in shards.calls.values()]
            return collect(spec, self._group.run("call", wrapped), shards.num_rows)

        return call


@contextmanager
def placement(pool: DevicePool, fraction: float = 1.0, shared_workers: bool = True) -> Iterator[WorkerGroup]:
    """Open a block on a share of the pool's devices; `remote` inside it builds siblings there.

    The workers outlive the block; `WorkerGroup.close` ends them. Blocks take disjoint devices.
    Args: fraction: share of the pool's devices. shared_workers: siblings share a process per device; separate
    processes are separate blocks.
    """
    if not shared_workers:
        raise RLTrainError("shared_workers=False: open one placement block per component instead")
    group = WorkerGroup(pool, max(1, round(pool.num_devices * fraction)))
    token = _block.set(group)
    try:
        yield group
    except BaseException:
        group.close()
        raise
    finally:
        _block.reset(token)


def remote(cls: type, *args: Any, **kwargs: Any) -> Remote:
    """Build `cls` on every rank of the current block; handles among the arguments become the siblings themselves."""
    group = _block.get(None)
    if group is None:
        raise RLTrainError(f"remote({cls.__name__}) needs a surrounding `with placement(pool):`")
    name = f"{cls.__name__}-{group.num_siblings}"
    group.num_siblings += 1
    args = tuple(_as_sibling(value) for value in args)
    kwargs = {key: _as_sibling(value) for key, value in kwargs.items()}
    group.run("build", [((name, cls, args, kwargs), {})] * group.world_size)
    return Remote(group, name, cls)


def _as_sibling(value: Any) -> Any:
    return Sibling(value._name) if isinstance(value, Remote) else value


def _gather(futures: list[Any]) -> list[Any]:
    """All results in order; the first failure is raised at once, so that ranks waiting for it are not waited for."""
    import ray

    pending, order = list(futures), {future: rank for rank, future in enumerate(futures)}
    results: list[Any] = [None] * len(futures)
    while pending:
        done, pending = ray.wait(pending, num_returns=1)
        results[order[done[0]]] = ray.get(done[0])
    return results
