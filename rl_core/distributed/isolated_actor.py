"""An object in a process with another interpreter, on this machine: a Ray actor with its own
`py_executable`.

Both environments have the same Ray and the same Python; everything else may differ. The process
belongs to the one that started it, and ends with it.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import psutil

from rl_core.distributed.failures import Failure, how_it_ended
from rl_core.distributed.worker import START_TIMEOUT_S
from rl_core.errors import RecipeError, RLTrainError, WorkerHung
from rl_core.rollout.vllm_process.isolated_main import IsolatedObject, Trouble

if TYPE_CHECKING:
    from ray import ObjectRef

A = TypeVar("A")

HEARTBEAT_S = 10.0
"""Seconds within which a busy process must show activity."""
IDLE_SHARE = 0.05
"""Share of a core below which a process counts as idle while it is called."""
ENDING_S = 0.5
"""Seconds that a killed process may take to be gone after others have noticed."""
PROJECT = Path(__file__).resolve().parents[2]


class Outside:
    """Handle of the object.

    Args: cls, args: class and arguments to build; they pickle, and their modules exist in both
    environments. label: name of the caller, for errors. environment: variables of the process.
    timeout_s: longest time without activity during a call.
    Raises: RecipeError when the interpreter cannot be used; otherwise as `call`.
    """

    def __init__(
        self,
        python: str,
        cls: type[object],
        *args: object,
        label: str,
        environment: dict[str, str],
        timeout_s: float,
    ) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        check_interpreter(python)
        self._name, self._label, self._timeout_s = cls.__name__, label, timeout_s
        self._process: psutil.Process | None = None
        self._helpers: list[psutil.Process] = []
        """Processes that the object has started, and computes with."""
        actor_cls = ray.remote(IsolatedObject)
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        variables = {"PYTHONPATH": str(PROJECT), **environment}
        self._actor: Any = actor_cls.options(
            num_cpus=0,
            max_restarts=0,
            scheduling_strategy=here,
            runtime_env={"py_executable": python, "env_vars": variables},
            # Ray sets CUDA_VISIBLE_DEVICES after these, so the actor is told again.
        ).remote(environment)
        self._process = psutil.Process(
            self._wait("start", self._actor.pid.remote(), START_TIMEOUT_S)
        )
        self._wait("__init__", self._actor.build.remote(cls, args))

    @property
    def pid(self) -> int:
        """Id of the process."""
        assert self._process is not None
        return self._process.pid

    def rely_on(self, pids: Iterable[int]) -> None:
        """Count the end of these processes, which the object has started, as that of its own."""
        self._helpers = [psutil.Process(pid) for pid in pids if pid != self.pid]

    def call(self, method: str, *args: object) -> Any:
        """Call a method and wait.

        Raises: WorkerDied within seconds of the process' end; WorkerHung when it is inactive; the
        project's own errors as they were raised there, WorkerError for others.
        """
        return self._wait(method, self._actor.call.remote(method, args))

    def close(self) -> None:
        """Kill the process and those that it started, even stopped ones, which would not react to
        Ray's request."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _wait(self, method: str, future: ObjectRef[A], timeout_s: float | None = None) -> A:
        """Wait for the answer.

        Args: timeout_s: longest total time; unset waits as long as the process is active.
        """
        from ray.exceptions import RayActorError, RayError

        used_s, seen, pending = 0.0, time.monotonic(), future.future()
        while not wait([pending], HEARTBEAT_S).done:
            before_s, used_s = used_s, self._used_s()
            if timeout_s is None and used_s - before_s > IDLE_SHARE * HEARTBEAT_S:
                seen = time.monotonic()
            limit_s = timeout_s or self._timeout_s
            if time.monotonic() - seen > limit_s:
                self.close()
                raise WorkerHung(f"{self._where(method)} has stood still for {limit_s:g} s")
        try:
            answer = pending.result()
        except RayActorError as error:
            raise Failure(
                0, self._where(method), how_it_ended(error), died=True
            ).to_error() from error
        except RayError as error:
            raise Failure(0, self._where(method), str(error)).to_error() from error
        if isinstance(answer, Trouble):
            raise self._error(method, answer)
        return answer

    def _error(self, method: str, trouble: Trouble) -> RLTrainError:
        """Return the error behind a call's trouble: the end or the silence of a helper is a
        machine's fault, as that of the object's own process."""
        where = self._where(method)
        if trouble.timed_out:
            self.close()
            return WorkerHung(f"{where}: {trouble.summary}")
        if trouble.error is None and (ended := self._ended_helpers()):
            self.close()
            summary = f"{trouble.summary}; it computes with process {ended[0]}, which has ended"
            return Failure(0, where, summary, trouble.traceback, died=True).to_error()
        return Failure(0, where, trouble.summary, trouble.traceback, trouble.error).to_error()

    def _ended_helpers(self) -> list[int]:
        if not self._helpers:
            return []
        time.sleep(ENDING_S)
        return [one.pid for one in self._helpers if _has_ended(one)]

    def _used_s(self) -> float:
        """Return the CPU time so far of the process and of those that it started, which may
        compute for it; 0 before it is known and after its end, which Ray reports."""
        used_s = 0.0
        for process in self._processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                used_s += times.user + times.system
        return used_s

    def _processes(self) -> list[psutil.Process]:
        """Return the process and those that it started, as far as they are alive."""
        if self._process is None:
            return []
        with suppress(psutil.NoSuchProcess):
            return [self._process, *self._process.children(recursive=True)]
        return []

    def _where(self, method: str) -> str:
        pid = f", pid {self._process.pid}" if self._process is not None else ""
        return f"{self._name} of {self._label} ({method}{pid})"


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def check_interpreter(python: str) -> None:
    """Check that the interpreter exists and that its Python and Ray are the same as here.

    Raises: RecipeError when not.
    """
    import ray

    ask = (
        "import sys; from importlib.metadata import version; print(sys.version.split()[0], "
        "version('ray'))"
    )
    try:
        done = subprocess.run(
            [python, "-c", ask], capture_output=True, text=True, timeout=START_TIMEOUT_S
        )
    except OSError as error:
        raise RecipeError(f"{python} cannot be run: {error.strerror}") from error
    ours = f"{sys.version.split()[0]} {ray.__version__}"
    theirs = done.stdout.strip() or (done.stderr.strip().splitlines() or ["no answer"])[-1]
    if theirs != ours:
        raise RecipeError(
            f"{python} has Python and Ray {theirs}; they must be the same on both sides: {ours}"
        )
