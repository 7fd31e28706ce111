"""The result of one part as a JSON file, written after every entry: a part that is cut leaves what
it had found."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite.parts import Part


class Status(StrEnum):
    """End of a part."""

    RUNNING = "running"
    """It has not ended yet."""
    DONE = "done"
    """It ran to its end."""
    CUT = "cut"
    """Its time was up; what it had found until then is there."""
    SKIPPED = "skipped"
    """Something that it needs is not installed here."""
    FAILED = "failed"
    """It broke; the reason is there."""


@dataclass
class Notebook:
    """Entries of a part, each a dictionary, in the file `<part>.json` of a folder."""

    folder: Path
    part: Part
    is_dry: bool
    status: Status = Status.RUNNING
    reason: str = ""
    entries: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> Path:
        return self.folder / f"{self.part.name}.json"

    def add(self, **entry: Any) -> None:
        """Append an entry, and write the file."""
        self.entries.append(entry)
        self.write()

    def end(self, status: Status, reason: str = "") -> None:
        """Say how the part ended, and write the file."""
        self.status, self.reason = status, reason
        self.write()

    def write(self) -> None:
        """Write the file in one step."""
        said = {
            "part": self.part.name,
            "status": self.status.value,
            "reason": self.reason,
            "dry": self.is_dry,
            "seconds": round(time.monotonic() - self.began, 1),
            "entries": self.entries,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(said, indent=1), encoding="utf-8")
        os.replace(draft, self.path)


def read(folder: Path, part: Part) -> dict[str, Any] | None:
    """Return what a part's file holds; None if the part was not run."""
    path = folder / f"{part.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
