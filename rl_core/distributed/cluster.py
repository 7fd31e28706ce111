"""The Ray cluster of a run: a running one, or a private one that ends with the run."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from rl_core.distributed.fork_server import forked_workers
from rl_core.distributed.nodes.driver import check_driver
from rl_core.errors import Unreachable
from rl_core.runtime.child_reaper import end_the_rest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

HASTE_S = 5.0
"""Seconds that the end of a failed or interrupted run waits for its cluster."""
POLL_S = 0.05
PORT_WAIT = "wait_for_persisted_port"
"""Function by which Ray waits for the port of a server."""
SIGACTION_BYTES = 256
"""More than `struct sigaction` takes on any system."""
_is_private = False
"""True while this process has a private cluster."""
_is_stuck = False
"""True if the private cluster is to be replaced."""
_early: threading.Event | None = None
"""Event that is set once the cluster of `early_cluster` has started."""


def configured_address(placement_address: str | None = None) -> str | None:
    """Return the address of the cluster: `RL_TRAIN_RAY_ADDRESS`, the recipe's, or `RAY_ADDRESS`;
    None if there is none."""
    return (
        os.environ.get("RL_TRAIN_RAY_ADDRESS")
        or placement_address
        or os.environ.get("RAY_ADDRESS")
        or None
    )


@contextmanager
def early_cluster(num_devices: int, device_kind: str) -> Iterator[None]:
    """Start a private cluster in parallel to the block; `ray_cluster` inside the block waits for
    it.

    With GPUs no cluster is started early: a process that looks for GPUs once, as imports may, does
    not see the ones it is given later. A cluster that is not gone `HASTE_S` after an error left the
    block, as when Ray is still starting, is ended with the block of `no_orphans`.
    """
    global _early
    if device_kind != "cpu":
        yield
        return
    _early, over = threading.Event(), Future[None]()
    # Ray's processes end with the thread that started them, so it stays until the block is over.
    # A daemon: the end of the process does not wait for a start that hangs, either.
    thread = threading.Thread(
        target=_hold, args=(num_devices, _early, over), name="early cluster", daemon=True
    )
    patience_s: float | None = HASTE_S
    thread.start()
    try:
        yield
        patience_s = None
        over.set_result(None)
    except BaseException:
        over.set_exception(RuntimeError("the block failed"))
        raise
    finally:
        thread.join(patience_s)
        if thread.is_alive():
            end_the_rest()
        _early = None


def _hold(num_devices: int, ready: threading.Event, over: Future[None]) -> None:
    # What fails here fails again in the `ray_cluster` that waits for it, which says so; an error of
    # the block is its caller's.
    with suppress(BaseException), ExitStack() as cluster:
        try:
            cluster.enter_context(_started(None, num_devices, "cpu"))
            cluster.enter_context(_collected_output())
        finally:
            ready.set()
        over.result()


@contextmanager
def ray_cluster(
    address: str | None, num_devices: int, device_kind: str, modules: Sequence[str] = ()
) -> Iterator[None]:
    """Connect to Ray for the block: the running connection, the cluster at `address`, or a private
    one that ends with the block. One whose only node was lost, or which was given up, is replaced.

    A private cluster's folder of logs and sockets is removed after a block that ended well, and
    stays after an error.

    Args: modules: files and packages of the user's that travel to the nodes of a running cluster.
    Raises: ServiceError for an address that a driver cannot use; Unreachable when nobody answers.
    """
    import ray

    if _early is not None:
        _early.wait()
    if address is None and ray.is_initialized() and (_is_stuck or not _has_nodes()):
        ray.shutdown()
    if ray.is_initialized():
        yield
        return
    options: dict[str, Any] = {}
    if address is not None:
        check_driver(address)
        if modules:
            options["runtime_env"] = {"py_modules": list(modules)}
    with _started(address, num_devices, device_kind, **options), _collected_output():
        yield


def is_private() -> bool:
    """Return True if this process has a cluster of its own, in which nobody else holds devices."""
    return _is_private


def give_up_private() -> None:
    """Have the next `ray_cluster` start another private cluster in place of the present one."""
    global _is_stuck
    _is_stuck = True


def _has_nodes() -> bool:
    import ray

    return any(node["Alive"] for node in ray.nodes())


@contextmanager
def _started(
    address: str | None, num_devices: int, device_kind: str, **options: Any
) -> Iterator[None]:
    global _is_private, _is_stuck
    import ray

    _is_private, _is_stuck = address is None, False
    if address is None:
        # Ray starts as many processes at once, each of which costs memory.
        options["num_cpus"] = num_devices
    if device_kind == "cuda" and address is None:
        options["num_gpus"] = num_devices
    # A private cluster's own token is no news to anyone.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(
        logging.ERROR
    )
    # Nor that SIGTERM stays with whoever runs the flow.
    logging.getLogger("ray._private.worker").addFilter(
        lambda record: "SIGTERM handler" not in record.getMessage()
    )
    private = address is None
    with ExitStack() as servers:
        # On GPUs: as in `early_cluster`. Elsewhere a process that was forked may not go on.
        if private and device_kind == "cpu" and sys.platform == "linux":
            options["runtime_env"] = {"py_executable": servers.enter_context(forked_workers())}
        with (
            _keep_signal_handlers(),
            _sessions_of_their_own(private=private),
            _closed_to_other_machines(private=private),
            _open_to_signals(),
        ):
            try:
                connection: Any = ray.init(
                    address=address or "local",
                    include_dashboard=False if address is None else None,
                    configure_logging=False,
                    log_to_driver=True,
                    **options,
                )
            except ConnectionError as error:
                raise Unreachable(
                    f"no Ray cluster answers at {address or 'this machine'} ({error}); `ray status "
                    "--address` asks it"
                ) from error
        try:
            yield
        finally:
            _is_private = False
            ray.shutdown()
    if private:
        shutil.rmtree(connection.address_info["session_dir"], ignore_errors=True)


def _collected_output() -> AbstractContextManager[None]:
    # Ray can start without waiting for what this import brings along.
    from rl_core.distributed.output import collected_output

    return collected_output()


@contextmanager
def _sessions_of_their_own(*, private: bool) -> Iterator[None]:
    """Start Ray's daemons outside the process group of this process.

    `timeout`, systemd, Slurm and Prefect send SIGTERM to the whole group: daemons in it would be
    gone before the run could stop its workers and report its end. They still end with the driver,
    whose death the kernel tells them. Ray has no option for it; this replacement of a private name
    can go when `ray.init` gets one.
    """
    if not private or sys.platform == "win32":
        yield
        return
    from ray._private import services

    usual = services.ConsolePopen
    services.ConsolePopen = partial(usual, start_new_session=True)
    try:
        yield
    finally:
        services.ConsolePopen = usual


@contextmanager
def _closed_to_other_machines(*, private: bool) -> Iterator[None]:
    """Give a private cluster the address 127.0.0.1, on which all its processes then listen.

    Ray replaces 127.0.0.1 by the machine's address in its network, and listens on every interface.
    `RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0` ends that, but is read when Ray is imported, perhaps long
    before. This replacement of a private name can go when `ray.init` gets an address to listen on.
    """
    from ray._private import ray_constants

    usual = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = usual and not private
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = usual


@contextmanager
def _open_to_signals() -> Iterator[None]:
    """Let other threads run, and with them signal handlers, while Ray waits for its servers.

    Ray waits up to 30 s for the port of a server, in C++ and without releasing Python's lock: a
    SIGTERM would wait as long. This replacement of a private name can go when Ray releases it. Not
    every version of Ray waits so.
    """
    from ray._private import node

    usual = getattr(node, PORT_WAIT, None)
    if usual is None:
        yield
        return

    def wait(*which: str, timeout_ms: int) -> int:
        end = time.monotonic() + timeout_ms / 1000
        while True:
            try:
                return usual(*which, timeout_ms=0)
            except RuntimeError:
                if time.monotonic() > end:
                    raise
            time.sleep(POLL_S)

    setattr(node, PORT_WAIT, wait)
    try:
        yield
    finally:
        setattr(node, PORT_WAIT, usual)


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Restore the SIGTERM handler, by which Prefect cancels a run in an orderly way, after
    `ray.init` replaced it.

    In the main thread Ray replaces Python's handler. In any thread it replaces the system's, under
    Python's, by one that prints a stack trace and aborts the process three seconds later, in the
    middle of its orderly end. Ray has no option for either.
    """
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGTERM)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, handler)
        return
    # Only the main thread may set a handler of Python's, but the system's is the same for all.
    libc, action = ctypes.CDLL(None), ctypes.create_string_buffer(SIGACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, action)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, action, None)
