"""Which metrics of a run the catalogue leaves out."""

import re
from collections.abc import Iterable

from rl_core.reporting.metric_catalogue import GROUPS

TRACKS = ("text", "images")


def unknown_metrics(names: Iterable[str]) -> list[str]:
    """Return the metrics that have no description."""
    patterns = [_pattern(note.name) for group in GROUPS.values() for note in group]
    found = set(names)
    # A registered version has its scores by their bare names.
    scores = {name.removeprefix("eval/") for name in found if name.startswith("eval/")}
    return sorted(
        name
        for name in found - scores
        if not any(re.fullmatch(pattern, _without_track(name)) for pattern in patterns)
    )


def _pattern(note: str) -> str:
    return re.sub(r"<\w+>", "[^/]+", re.escape(note).replace(r"\<", "<").replace(r"\>", ">"))


def _without_track(name: str) -> str:
    first, _, rest = name.partition("/")
    return rest if rest and first in TRACKS else name
