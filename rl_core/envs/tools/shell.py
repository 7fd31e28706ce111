"""A shell in a sandbox, kept for an episode: commands see what earlier ones left, and nothing of
this machine. Without network.

Under bubblewrap the folders that may be written are in memory, and the system is this machine's,
read-only. In a container they are the image's own. All of it ends with `close`.
"""

from __future__ import annotations

import base64
import json
import os
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_core.envs.tools import bubblewrap
from rl_core.envs.tools.places import container
from rl_core.envs.tools.places.sandbox_choice import SandboxChoice, SandboxMode, container_of
from rl_core.envs.tools.workers import shell_worker
from rl_core.errors import EnvError

START_TIMEOUT_S = 60.0
ANSWER_TIMEOUT_S = 15.0
"""Seconds after a command's own deadline that its answer is waited for."""


@dataclass(frozen=True)
class Ran:
    """End of a command."""

    code: int
    output: str
    """Standard output and standard error."""
    timed_out: bool = False


class Shell:
    """One started sandbox. Args: folders: absolute paths that commands may write to. image: instead
    of the one that the place names. Raises: MachineLacks when it cannot run here."""

    def __init__(
        self, place: SandboxChoice, folders: Sequence[str], image: str | None = None
    ) -> None:
        source = Path(shell_worker.__file__).read_text(encoding="utf-8")
        self._container = None
        named = container_of(place)
        if named is not None:
            program, usual = named
            self._process, name = container.start_shell(program, image or usual, source)
            self._container = program, name
        elif place == SandboxMode.BUBBLEWRAP:
            self._process = bubblewrap.start_shell(source, folders)
        else:
            raise EnvError("sandbox: a shell runs under bubblewrap, docker or podman")
        self._left = b""

    def run(
        self,
        command: str,
        *,
        cwd: str,
        env: Mapping[str, str],
        timeout_s: float,
        output_bytes: int = 65536,
    ) -> Ran:
        """Run a command with bash. Args: cwd: empty for the folder in which the sandbox begins.
        Raises: EnvError when the sandbox ended."""
        answer = self._asked(
            {
                "run": command,
                "cwd": cwd,
                "env": dict(env),
                "timeout_s": timeout_s,
                "output_bytes": output_bytes,
            },
            timeout_s + START_TIMEOUT_S,
        )
        text = base64.b64decode(answer["output"]).decode("utf-8", "replace")
        return Ran(answer["code"], text, answer["timed_out"])

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Write a file. Raises: EnvError when it cannot be written."""
        self._asked({"write": path, "data": base64.b64encode(data).decode(), "mode": mode})

    def put(self, folder: Path, at: str) -> None:
        """Write all files of a folder of this machine below a path. Raises: EnvError."""
        for file in sorted(folder.rglob("*")):
            if file.is_file():
                where = f"{at.rstrip('/')}/{file.relative_to(folder)}"
                self.write(where, file.read_bytes(), file.stat().st_mode & 0o777)

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none. Raises: EnvError when it cannot be
        read, or the sandbox ended."""
        data = self._asked({"read": path})["data"]
        return None if data is None else base64.b64decode(data)

    def empty(self, folder: str) -> None:
        """Leave a folder there, with nothing in it. Raises: EnvError when something stays."""
        self._asked({"empty": folder})

    def end_others(self) -> None:
        """End everything that commands left running. Raises: EnvError when that is not possible."""
        self._asked({"end_others": True})

    def close(self) -> None:
        """End the sandbox and everything in it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(OSError):
            self._process.stdin.close()
        container.end(self._process, self._container)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def _asked(
        self, request: Mapping[str, object], timeout_s: float = START_TIMEOUT_S
    ) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        deadline = time.monotonic() + timeout_s + ANSWER_TIMEOUT_S
        try:
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
        except OSError as error:
            raise EnvError("the sandbox of a shell ended") from error
        while b"\n" not in self._left:
            left_s = max(0.0, deadline - time.monotonic())
            if not select.select([self._process.stdout], [], [], left_s)[0]:
                raise EnvError(f"the sandbox of a shell did not answer in {timeout_s:g} s")
            data = os.read(self._process.stdout.fileno(), 1 << 20)
            if not data:
                raise EnvError("the sandbox of a shell ended")
            self._left += data
        line, _, self._left = self._left.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise EnvError(answer["error"])
        return answer
