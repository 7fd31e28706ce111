"""Processes in which agents play, outside of the one that samples."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rl_core.data.prepare.chat_template import Message
from rl_core.envs.agent import AgentSettings
from rl_core.envs.others.interpreters import module_paths
from rl_core.errors import EnvError, WorkerDied
from rl_core.rollout.agents import agent_main

START_TIMEOUT_S = 180.0
"""Seconds in which an agent's module has to be imported."""
ENDS_WITHIN_S = 10.0


@dataclass(frozen=True)
class Ended:
    """End of an episode: a reward, those of its requests or seats, messages, or a failure."""

    reward: float | None = None
    rewards: tuple[float, ...] | None = None
    seats: Mapping[str, float] | None = None
    """Reward of each seat."""
    messages: tuple[Message, ...] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    timed_out: bool = False


class AgentProcesses:
    """Processes of one agent: the first has imported it, and forks for each episode.

    Args: name: of the environment. Raises: EnvError when the agent cannot be imported.
    """

    def __init__(self, name: str, config: AgentSettings) -> None:
        self.name, self.agent = name, config.program
        self._on_end: dict[int, Callable[[Ended], None]] = {}
        self._lock = threading.Lock()
        # Of its own: an order that waits for the process to read it must not keep the reader from
        # the results, which the process may be waiting to tell.
        self._telling = threading.Lock()
        self._ready = threading.Event()
        self._broken: str | None = None
        self.alive = True
        self._process: subprocess.Popen[bytes] = subprocess.Popen(
            # -P: the files beside this one have names of their own.
            [config.python or sys.executable, "-P", agent_main.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"agent {name}", daemon=True)
        self._reader.start()
        setup = {"agent": config.program, "settings": config.program_settings}
        self._tell(setup | {"path": module_paths(config.python is not None)})
        self._ready.wait(START_TIMEOUT_S)
        if self._broken is not None or not self.alive or not self._ready.is_set():
            self.close()
            if self._broken:
                why = self._broken
            elif not self.alive:
                why = (
                    f"its process ended at once (exit code {self._process.returncode}); "
                    f"{config.python or 'the interpreter'} must have Python 3.11 or newer"
                )
            else:
                why = f"importing it took longer than {START_TIMEOUT_S:g} s"
            raise EnvError(f"environments.{name}: the agent {self.agent} cannot be used: {why}")

    def start(
        self, number: int, order: Mapping[str, object], on_end: Callable[[Ended], None]
    ) -> None:
        """Play an episode. Args: order: its row, address, key and seed. on_end: called in another
        thread. Raises: WorkerDied when the process is gone."""
        with self._lock:
            self._on_end[number] = on_end
        if not self._tell({"id": number, **order}) or not self.alive:
            raise WorkerDied(f"environments.{self.name}: the process of its agent ended")

    def end(self, number: int) -> None:
        """End an episode's process; nothing is told of it."""
        with self._lock:
            if self._on_end.pop(number, None) is None:
                return
        self._tell({"kill": number})

    def close(self) -> None:
        """End all processes."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._lock:
            self._on_end.clear()
        with suppress(BrokenPipeError):  # it ended already
            self._process.stdin.close()
        try:
            self._process.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        # What the agent's module started on its own may hold the pipe that the reader reads to its
        # end. The group outlives its first process as long as there is such a one.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._reader.join(ENDS_WITHIN_S)
        # A process that left the group may hold the pipe still. The reader, a daemon, is then left
        # to it, since closing a file that is being read waits for the reader.
        if not self._reader.is_alive():
            self._process.stdout.close()

    def _tell(self, message: Mapping[str, object]) -> bool:
        assert self._process.stdin is not None
        with self._telling:
            try:
                self._process.stdin.write((json.dumps(message, default=str) + "\n").encode())
                self._process.stdin.flush()
            except (OSError, ValueError):  # it ended, or was closed meanwhile
                return False
        return True

    def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            for line in self._process.stdout:
                self._hear(line)
        except BaseException:
            self._process.kill()
            raise
        finally:
            # Whatever ended the reading, nobody is left to wait for an answer that cannot come.
            self._process.wait()
            self.alive = False
            self._ready.set()
            with self._lock:
                left, self._on_end = list(self._on_end.values()), {}
            for on_end in left:
                on_end(Ended(error="the process that starts the agent's episodes ended"))

    def _hear(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            return  # it was ended in the middle of an answer
        message = json.loads(line)
        if "id" not in message:
            self._broken = message.get("broken")
            self._ready.set()
            return
        with self._lock:
            on_end = self._on_end.pop(message["id"], None)
        if on_end is not None:
            on_end(_ended(message))


def _ended(message: Mapping[str, Any]) -> Ended:
    metrics = message.get("metrics") or {}
    if "died" in message:
        return Ended(error=f"the agent's process ended before it returned ({message['died']})")
    if "seats" in message:
        return Ended(seats=message["seats"], metrics=metrics)
    if "rewards" in message:
        return Ended(rewards=tuple(message["rewards"]), metrics=metrics)
    if "messages" in message:
        return Ended(messages=tuple(message["messages"]), metrics=metrics)
    return Ended(reward=message.get("reward"), metrics=metrics, error=message.get("error"))
