"""The Ray cluster a run computes on: a running one, or a private one that ends with the run."""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rl_core.distributed.output import collected_output

if TYPE_CHECKING:
    from collections.abc import Iterator


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
    # A private cluster's own token is no news to anyone.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    with _keep_signal_handlers():
        ray.init(
            address=address or "local",
            include_dashboard=False if address is None else None,
            configure_logging=False,
            log_to_driver=True,
            **options,
        )
    try:
        with collected_output():
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
