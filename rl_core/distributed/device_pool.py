"""The devices of a run: a private or shared Ray cluster, and which of its devices are taken."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rl_core.errors import RecipeError

if TYPE_CHECKING:
    from collections.abc import Iterator


class DevicePool:
    """A number of devices of one kind. Placement blocks take disjoint devices from it."""

    def __init__(self, num_devices: int, device_kind: str = "cpu", threads_per_device: int = 0) -> None:
        self.num_devices = num_devices
        self.device_kind = device_kind
        self.threads_per_device = threads_per_device or max(1, (os.cpu_count() or 1) // num_devices)
        self._next_free = 0

    def take(self, num_devices: int) -> range:
        """Reserve devices. Raises: RecipeError when fewer are free."""
        free = self.num_devices - self._next_free
        if num_devices < 1 or num_devices > free:
            raise RecipeError(f"placement asks for {num_devices} devices, {free} of {self.num_devices} are free")
        first, self._next_free = self._next_free, self._next_free + num_devices
        return range(first, self._next_free)

    def release(self, devices: range) -> None:
        """Give devices back, last taken first."""
        if devices.stop == self._next_free:
            self._next_free = devices.start


@contextmanager
def ray_cluster(address: str | None, num_devices: int, device_kind: str) -> Iterator[None]:
    """A Ray connection for the block: the running one, that at `address`, or a private one that ends with the block."""
    import ray

    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {"num_cpus": max(num_devices, os.cpu_count() or 1)} if address is None else {}
    if device_kind == "cuda" and address is None:
        options["num_gpus"] = num_devices
    with _keep_signal_handlers():
        ray.init(
            address=address or "local",
            include_dashboard=False if address is None else None,
            configure_logging=False,
            log_to_driver=False,
            **options,
        )
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """`ray.init` replaces the SIGTERM handler, by which Prefect cancels a run in an orderly way; put it back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
