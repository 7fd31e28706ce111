"""The `rl-train` commands that the pages print, as a reader would type them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.command import REPOSITORY

PAGES = (
    REPOSITORY / "README.md",
    REPOSITORY / "AGENTS.md",
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted((REPOSITORY / "docs" / "tutorials").glob("*.md")),
    *sorted((REPOSITORY / "deployments" / "starters").glob("*/README.md")),
)
_FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`((?:\.venv/bin/)?rl-train [^`]+)`")
_TYPED = ("", "sh", "bash", "console")
_ENDS = {"|", "&&", ";", ">", "||"}
LEFT_OUT = ("…", "...", "[", "{")
"""What an argument begins or ends with that a reader is to fill in, or a list of alternatives."""


@dataclass(frozen=True)
class Command:
    """A command of a page: its words after `rl-train`, and whether a reader could type them all."""

    page: str
    words: tuple[str, ...]
    in_block: bool

    @property
    def whole(self) -> bool:
        """False where something is to be filled in, or the words are only mentioned."""
        return not any(word.startswith(LEFT_OUT) or word.endswith("…") for word in self.words)

    def __str__(self) -> str:
        return f"{self.page}: rl-train {shlex.join(self.words)}"


def commands() -> list[Command]:
    """Every command of the pages once, blocks first."""
    found: dict[tuple[str, tuple[str, ...]], Command] = {}
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        page = path.relative_to(REPOSITORY).as_posix()
        for language, block in _FENCE.findall(text):
            if language in _TYPED:
                for line in block.replace("\\\n", " ").splitlines():
                    for words in _of_line(line):
                        found.setdefault((page, words), Command(page, words, True))
        for line in _INLINE.findall(_FENCE.sub("", text)):
            for words in _of_line(" ".join(line.split())):
                found.setdefault((page, words), Command(page, words, False))
    return list(found.values())


def _of_line(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line of a shell, in which others may stand before and after."""
    if "rl-train " not in line:
        return
    try:
        words = shlex.split(line.removeprefix("$ "), comments=True)
    except ValueError:
        return  # a sentence with an apostrophe
    current: list[str] | None = None
    for word in [*words, ";"]:
        if word in _ENDS:
            if current is not None:
                yield tuple(current)
            current = None
        elif current is not None:
            current.append(word)
        elif Path(word).name == "rl-train":
            current = []


def makes() -> set[str]:
    """The targets that `make` is asked for in blocks of the pages."""
    found: set[str] = set()
    for path in PAGES:
        for language, block in _FENCE.findall(path.read_text(encoding="utf-8")):
            if language in _TYPED:
                found |= set(re.findall(r"^(?:\$ )?make ([a-z][a-z-]*)", block, re.MULTILINE))
    return found
