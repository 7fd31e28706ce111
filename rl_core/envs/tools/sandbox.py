"""Model-written Python in a separate process under bubblewrap: no network, no files, no escape.

A sandbox has its own user, process, network, ipc and mount namespaces; it sees the system and the
interpreter read-only, an empty home in memory, and the packages named in its settings. It runs as
an unprivileged user if this process is root. Programs are restricted by seccomp filters
(`seccomp.py`) and by limits on wall and cpu time, memory, threads, open files, number and size of
files, and output.

One sandbox serves one program: many tests share it, each in a forked process, and no other program
ever enters it. Starting one takes tens of milliseconds of the kernel's and the interpreter's time,
so a pool keeps some started.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sysconfig
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Protocol

from pydantic import Field

from rl_core.envs.tools import bubblewrap, seccomp
from rl_core.envs.tools.execution import Call, Execution, Outcome
from rl_core.envs.tools.places import container, remote_sandbox
from rl_core.envs.tools.places.remote_sandbox import RemoteProgram
from rl_core.envs.tools.places.sandbox_choice import (
    RemoteSandbox,
    SandboxChoice,
    SandboxMode,
    container_of,
)
from rl_core.envs.tools.shared import Lease, Shared
from rl_core.envs.tools.workers import sandbox_worker
from rl_core.errors import EnvError
from rl_core.runtime.registry import PluginConfig

ANSWER_TIMEOUT_S = 30.0
"""Seconds after a test's own deadline that the sandbox's answer is waited for, including its
start."""
PRELOADED = (
    "random",
    "string",
    "datetime",
    "decimal",
    "fractions",
    "statistics",
    "queue",
    "threading",
    "copy",
)
"""Modules that a sandbox imports once for all tests of a program that mentions them."""


class SandboxSettings(PluginConfig):
    """Limits of sandboxed programs. Sizes are per process of one test."""

    mode: SandboxChoice = SandboxMode.BUBBLEWRAP
    """Isolation of programs; `unsafe` is never chosen by default."""
    memory_bytes: int = Field(default=1024 * 2**20, ge=64 * 2**20)
    """Address space in bytes."""
    output_bytes: int = Field(default=8 * 2**20, ge=1024)
    """Largest size of standard output, standard error, result, and each file that the program
    writes."""
    threads: int = Field(default=64, ge=1)
    """Maximum number of concurrent threads."""
    open_files: int = Field(default=64, ge=16)
    """Maximum number of open files."""
    files: int = Field(default=4096, ge=16)
    """Maximum number of files and folders that the tests of a program leave in its own `/tmp`."""
    packages: tuple[str, ...] = ("numpy", "sortedcontainers")
    """Packages that a program may import in addition to the standard library, if they are
    installed."""


class RunsProgram(Protocol):
    """A place that runs one program, wherever it is."""

    @property
    def is_alive(self) -> bool:
        """True if it can still run the program."""
        ...

    def load(self, source: str) -> None:
        """Take the program, without running it."""
        ...

    def run(
        self,
        *,
        timeout_s: float,
        stdin: str = "",
        call: Call | None = None,
        call_bare: bool = False,
    ) -> Execution:
        """Run the program once, in a fresh process."""
        ...

    def close(self) -> None:
        """End what runs."""
        ...


class Sandbox:
    """One started sandbox, for one program. Not safe for concurrent use."""

    def __init__(self, settings: SandboxSettings) -> None:
        self.settings = settings
        self._home = self._container = None
        named = container_of(settings.mode)
        self._packages = [bubblewrap.PACKAGES]
        if named is not None:
            # The image's own packages are where its interpreter finds them.
            self._packages = []
            self._process, name = container.start(*named, settings.memory_bytes, settings.threads)
            self._container = named[0], name
        elif settings.mode == SandboxMode.UNSAFE:
            self._home = tempfile.mkdtemp(prefix="rl-train-unsafe-")
            self._packages = [sysconfig.get_path("purelib")]
            self._process = bubblewrap.start_unsafe(self._home)
        else:
            self._process = bubblewrap.start(settings.packages)
        self._is_open = True

    @property
    def is_alive(self) -> bool:
        """True if the sandbox's process still runs."""
        return self._process.poll() is None

    def load(self, source: str) -> None:
        """Send the program to the sandbox, without running it. Raises: EnvError when the sandbox
        did not start."""
        limits = self.settings.model_dump(
            include={"memory_bytes", "output_bytes", "threads", "open_files", "files"}
        )
        program_filter = seccomp.program_filter() or b""
        setup = {
            "source": source,
            "packages": self._packages,
            "preload": [name for name in (*PRELOADED, *self.settings.packages) if name in source],
            "program_filter": program_filter.hex(),
            "limits": limits,
        }
        try:
            self._send(setup)
        except OSError as error:
            raise EnvError(f"a sandbox did not start: {self._complaint() or error}") from error

    def run(
        self,
        *,
        timeout_s: float,
        stdin: str = "",
        call: Call | None = None,
        call_bare: bool = False,
    ) -> Execution:
        """Run the program once, in a fresh process.

        Args:
            timeout_s: wall time of this test.
            stdin: standard input of the program.
            call: a function to call after the program's definitions; without one the program runs
                as `__main__`.
            call_bare: if that program neither reads nor writes but defines functions, call the main
                one with standard input as literals.

        Raises: EnvError when Docker or Podman failed, which says nothing about the program.
        """
        asked = {"name": call.name, "arguments": list(call.arguments)} if call else None
        try:
            self._send(
                {"stdin": stdin, "call": asked, "call_bare": call_bare, "timeout_s": timeout_s}
            )
            return self._receive(time.monotonic() + timeout_s + ANSWER_TIMEOUT_S)
        except (OSError, EOFError):
            self._check_container()
            self.close()
            return Execution(Outcome.LOST, stderr=b"the sandbox ended")

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox and everything in it."""
        if not self._is_open:
            return
        self._is_open = False
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        container.end(self._process, self._container)
        self._process.stderr.close()  # type: ignore[union-attr]
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)

    def _check_container(self) -> None:
        if self._container is None:
            return
        told = self._complaint()
        if self._process.poll() == container.OWN_FAILURE:
            raise EnvError(f"sandbox: {self._container[0]} ran no program: {told}")

    def _send(self, request: dict[str, object]) -> None:
        data = json.dumps(request).encode()
        pipe = self._process.stdin
        assert pipe is not None
        pipe.write(sandbox_worker.LENGTH.pack(len(data)) + data)
        pipe.flush()

    def _receive(self, deadline: float) -> Execution:
        head = self._read(sandbox_worker.ANSWER.size, deadline)
        how, code, wall_s, cpu_s, *lengths = sandbox_worker.ANSWER.unpack(head)
        limit = self.settings.output_bytes
        if any(length > limit for length in lengths):
            raise EOFError
        stdout, stderr, result = (self._read(length, deadline) for length in lengths)
        if how == sandbox_worker.TIMED_OUT:
            outcome = Outcome.TIMEOUT
        elif any(length == limit for length in lengths):
            outcome = Outcome.OUTPUT_LIMIT
        else:
            if (how, code) == (sandbox_worker.EXITED, 0):
                outcome = Outcome.FINISHED
            else:
                outcome = Outcome.FAILED
        return Execution(outcome, stdout, stderr, result, wall_s, cpu_s)

    def _read(self, size: int, deadline: float) -> bytes:
        pipe = self._process.stdout
        assert pipe is not None
        data = bytearray()
        while len(data) < size:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise EOFError
            part = os.read(pipe.fileno(), min(size - len(data), 2**20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)

    def _complaint(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(container.GRACE_S)
        stderr = self._process.stderr
        ready = stderr is not None and select.select([stderr], [], [], 0)[0]
        if ready and stderr:
            return os.read(stderr.fileno(), 4096).decode(errors="replace").strip()
        return ""


def new_sandbox(settings: SandboxSettings) -> RunsProgram:
    """Return a sandbox for one program, where the settings say. Raises: MachineLacks when it cannot
    be started."""
    if isinstance(settings.mode, RemoteSandbox):
        return RemoteProgram(settings.mode.remote, settings.memory_bytes, settings.output_bytes)
    return Sandbox(settings)


class SandboxPool:
    """Pool of started sandboxes. Thread-safe; has no thread of its own."""

    def __init__(self, settings: SandboxSettings, num_warm: int = 2) -> None:
        self.settings, self.num_warm = settings, num_warm
        self._warm: deque[RunsProgram] = deque()
        self._lock = Lock()

    @contextmanager
    def sandbox(self, source: str) -> Iterator[RunsProgram]:
        """Take a sandbox, load this program into it, and close it afterwards. Its replacement
        starts in the meantime."""
        sandbox = self._take()
        try:
            sandbox.load(source)
            yield sandbox
        finally:
            sandbox.close()

    def close(self) -> None:
        """End the idle sandboxes."""
        with self._lock:
            waiting, self._warm = self._warm, deque()
        for sandbox in waiting:
            sandbox.close()

    def _take(self) -> RunsProgram:
        with self._lock:
            while True:
                while len(self._warm) <= self.num_warm:
                    self._warm.append(new_sandbox(self.settings))
                sandbox = self._warm.popleft()
                if sandbox.is_alive:
                    return sandbox
                # Killed from outside while it waited, for memory perhaps.
                sandbox.close()


sandbox_pools: Shared[Any, SandboxPool] = Shared(SandboxPool)
"""The pools of this process, one per settings."""


def lease_pool(settings: SandboxSettings) -> Lease[SandboxPool]:
    """Lease this process's pool. Raises: MachineLacks when the place that the settings name cannot
    run programs."""
    if isinstance(settings.mode, RemoteSandbox):
        remote_sandbox.require(settings.mode.remote)
    elif (named := container_of(settings.mode)) is not None:
        container.require(*named)
    elif settings.mode == SandboxMode.BUBBLEWRAP:
        bubblewrap.require()
    return sandbox_pools.lease(settings)
