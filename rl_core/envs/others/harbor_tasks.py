"""Task folders of Harbor: `task.toml`, `instruction.md`, `environment/Dockerfile`, `tests/test.sh`.

Bubblewrap has no images. Of a Dockerfile it takes `WORKDIR`, `ENV` and `COPY`, over this machine's
own system in place of `FROM`; a task that needs more is for a container.
"""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from rl_core.errors import EnvError

WORKDIR = "/app"
"""Folder of the work where a Dockerfile names none."""
PLAIN = ("FROM", "LABEL", "ARG", "CMD", "EXPOSE", "MAINTAINER", "STOPSIGNAL")
"""Instructions of a Dockerfile that change nothing for a shell under bubblewrap."""


_SYSTEM = ("", "bin", "dev", "etc", "lib", "lib32", "lib64", "proc", "sandbox", "sys", "usr")
"""Folders of the root, and the root itself, that a shell under bubblewrap cannot have as its
own."""


@dataclass(frozen=True)
class HarborTask:
    """One task."""

    folder: Path
    instruction: str
    agent_timeout_s: float
    verifier_timeout_s: float
    image: str | None
    """Image that is there already, in place of a Dockerfile."""
    workdir: str = WORKDIR
    env: dict[str, str] = field(default_factory=dict)
    copies: list[tuple[str, str]] = field(default_factory=list)
    """Paths below `environment/`, and where they go."""
    needs_image: str = ""
    """Reason why the task cannot be done without an image; empty if it can."""

    @property
    def name(self) -> str:
        """Name of its folder."""
        return self.folder.name


def read_tasks(folder: Path) -> list[HarborTask]:
    """Read the tasks below a folder, or the one that it is. Raises: EnvError naming the file that
    is missing or wrong."""
    if not folder.is_dir():
        raise EnvError(f"harbor: there is no folder {folder}")
    found = sorted(path.parent for path in folder.rglob("task.toml"))
    if not found:
        raise EnvError(f"harbor: no task.toml in {folder}; each task is a folder with one")
    return [read_task(one) for one in found]


def read_task(folder: Path) -> HarborTask:
    """Read a task. Raises: EnvError naming the file that is missing or wrong."""
    settings_file = folder / "task.toml"
    try:
        settings = tomllib.loads(settings_file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EnvError(f"{settings_file}: cannot be read: {error}") from error
    if (folder / "steps").is_dir() or settings.get("steps"):
        raise EnvError(f"{folder}: a task of several steps, which is not played here")
    for name in ("instruction.md", "tests/test.sh"):
        if not (folder / name).is_file():
            raise EnvError(f"{folder}: {name} is missing")
    environment = settings.get("environment") or {}
    image = environment.get("docker_image")
    needs = f"{settings_file}: docker_image {image}" if image else ""
    read = _Dockerfile(folder / "environment" / "Dockerfile")
    if any((folder / "environment").glob("*compose.y*ml")):
        needs = needs or f"{folder}/environment: docker-compose"
    return HarborTask(
        folder,
        (folder / "instruction.md").read_text(encoding="utf-8").strip(),
        _seconds(settings, "agent", settings_file),
        _seconds(settings, "verifier", settings_file),
        image,
        read.workdir,
        read.env,
        read.copies,
        needs or read.needs_image,
    )


def _seconds(settings: dict[str, object], section: str, file: Path) -> float:
    values = settings.get(section)
    given = values.get("timeout_sec", 600.0) if isinstance(values, dict) else 600.0
    if isinstance(given, bool) or not isinstance(given, int | float) or given <= 0:
        raise EnvError(f"{file}: {section}.timeout_sec must be a number of seconds, got {given!r}")
    return float(given)


class _Dockerfile:
    """The instructions of a Dockerfile that a shell without an image can follow."""

    def __init__(self, file: Path) -> None:
        self.file, self.workdir, self.needs_image = file, WORKDIR, ""
        self.env: dict[str, str] = {}
        self.copies: list[tuple[str, str]] = []
        if not file.is_file():
            return
        text = file.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in text.splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                self._take(line.strip())

    def _take(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        word = name.upper()
        try:
            words = shlex.split(rest)
        except ValueError:
            words = []
        # A variable's value is the image's, and so are the names that a pattern stands for.
        if "$" in rest or (word == "COPY" and any(sign in rest for sign in "*?[")):
            words = []
        if word == "WORKDIR" and len(words) == 1:
            self.workdir = self._absolute(words[0])
            self._needs_own(self.workdir, line)
        elif word == "ENV" and words and all("=" in one for one in words):
            self.env |= dict(one.split("=", 1) for one in words)
        elif word == "COPY" and len(words) >= 2 and not words[0].startswith(("-", "[")):
            for source in words[:-1]:
                self._needs_own(self._copy(source, words[-1], several=len(words) > 2), line)
        elif word not in PLAIN:
            self._needs(line)

    def _needs_own(self, at: str, line: str) -> None:
        if at.split("/")[1] in _SYSTEM:
            self._needs(line)

    def _needs(self, line: str) -> None:
        shown = line if len(line) <= 60 else f"{line[:57]}..."
        self.needs_image = self.needs_image or f"{self.file}: {shown}"

    def _copy(self, source: str, to: str, *, several: bool) -> str:
        at = self._absolute(to)
        path = self.file.parent / source
        if path.is_file() and (several or to.endswith("/") or to in (".", "./")):
            at = f"{at.rstrip('/')}/{path.name}"
        if not path.resolve().is_relative_to(self.file.parent.resolve()) or not path.exists():
            raise EnvError(f"{self.file}: COPY {source}: there is no such file beside it")
        self.copies.append((source, at))
        return at

    def _absolute(self, path: str) -> str:
        joined = path if path.startswith("/") else f"{self.workdir}/{path}"
        parts = [part for part in joined.split("/") if part not in ("", ".")]
        return "/" + "/".join(parts)
