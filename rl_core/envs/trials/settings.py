"""Settings of trials, their rows and their findings."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from rl_core.envs.base import Message
from rl_core.envs.registration import spec

VERSION = "2"
"""Version of the trials, raised whenever the same rows would be judged differently."""


@dataclass(frozen=True)
class TrialSettings:
    """Settings that decide which environments rows are built with."""

    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Options of each environment id, with own classes named by import path."""
    timeout_s: float = 60.0
    """Longest time that one row's environment may take to be built."""
    oracle_rows: int | None = 0
    """Number of rows, spread over the files, that are played; None plays all."""
    sources: str = ""
    """Digest of the source files of own environments, since editing one changes its verdicts."""

    def describe(self) -> str:
        """Return the settings that decide about rows, as one part of a hash."""
        options = json.dumps(self.options, sort_keys=True, default=str)
        return f"oracle {self.oracle_rows}, environments {options} {self.sources}"


@dataclass(frozen=True)
class Trial:
    """A row that is tried."""

    env_class: str
    extras: Mapping[str, object]
    """The row as its environment gets it."""
    prompt: list[Message] | None = None
    """Messages of a row that is also played; None builds its environment alone."""


TrialValues: TypeAlias = tuple[str, Mapping[str, object], list[Message] | None]
"""The values of a `Trial` in order, as they are sent to another process."""


class Verdict(StrEnum):
    """Kind of a finding."""

    REFUSED = "refused"
    """The environment does not take the row."""
    NOT_BUILT = "not built"
    """The environment needs something that this machine lacks; nothing is said about the row."""
    UNEARNABLE = "cannot be earned"
    """The row's own answer does not earn the full reward."""
    FREE = "free"
    """A wrong or an empty answer earns the full reward."""
    NOT_PLAYED = "not played"
    """The environment does not say how an answer is written."""


@dataclass(frozen=True)
class Finding:
    """A result of a trial about one row."""

    index: int
    """Position of the row among the trials."""
    verdict: Verdict
    message: str
    field: str = ""
    """Column that the environment objects to, with dots; empty if it does not say."""


def source_digest(options: Mapping[str, Mapping[str, object]]) -> str:
    """Return a digest of the files of environments that options name by import path.

    Raises: EnvError when a class cannot be imported.
    """
    digest = hashlib.sha256()
    for env_id, values in sorted(options.items()):
        if ":" not in env_id and "target" not in values:
            continue
        try:
            digest.update(Path(inspect.getfile(spec(env_id, values).load())).read_bytes())
        except (OSError, TypeError):  # a class without a file cannot be edited
            continue
    return digest.hexdigest()[:16]
