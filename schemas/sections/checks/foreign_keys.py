"""Recipe keys for the keys of UniRL, SkyRL, verl, NeMo RL and TRL.

The table is `foreign_keys.yaml`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class ForeignKey:
    """A key of another system, and what it is here."""

    system: str
    here: str
    """The recipe key; what may follow it says how the value differs."""

    @property
    def recipe_key(self) -> str:
        """The recipe key alone."""
        return self.here.split(" ", 1)[0]


def foreign_keys() -> dict[str, ForeignKey]:
    """Every key that has an equivalent."""
    return _table()[0]


def foreign_key_lines(place: str, value: object) -> list[str]:
    """Return a line for each key at and below an unknown place; none if no system has them.

    Args: place: dotted. value: what stands there.
    """
    lines = [(key, _said_of(key)) for key in _leaves(place, value)]
    if not any(said for _, said in lines):
        return []
    unknown = "has no equivalent here; docs/coming-from.md has those that do"
    return [f"{key} {said or unknown}" for key, said in lines]


@cache
def _table() -> tuple[dict[str, ForeignKey], dict[str, str]]:
    """Keys with an equivalent, and why others have none, by their last part."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    systems: dict[str, dict[str, str]] = yaml.safe_load(text)
    reasons = systems.pop("not here")
    known = {}
    for system, keys in systems.items():
        for key, here in keys.items():
            known[key] = ForeignKey(system, here)
    return known, reasons


def _said_of(place: str) -> str:
    if (found := _equivalent(place)) is not None:
        return f"is {found.system}'s name; here it is {found.here}"
    reason = _table()[1].get(_last(place))
    if reason:
        return f"has no equivalent here: {reason}"
    return ""


def _equivalent(place: str) -> ForeignKey | None:
    """The known key that a place is, ends in, or is the end of.

    A last part by itself decides only where it is no recipe key's own and has no reason of its own,
    so that a misspelt section is not taken for another system's.
    """
    known, reasons = _table()
    parts = place.split(".")
    ends = [".".join(parts[start:]) for start in range(max(1, len(parts) - 1))]
    for end in ends:
        if end in known:
            return known[end]
    ending = [one for key, one in known.items() if key.endswith(f".{place}")]
    taken = {_last(one.recipe_key) for one in known.values()} | reasons.keys()
    if not ending and parts[-1] not in taken:
        ending = [one for key, one in known.items() if _last(key) == parts[-1]]
    if len({one.recipe_key for one in ending}) == 1:
        return ending[0]
    return None


def _leaves(place: str, value: object) -> Iterator[str]:
    """The places of plain values; a place that is known itself is not opened."""
    if not isinstance(value, Mapping) or not value or place in foreign_keys():
        yield place
        return
    for key, inner in value.items():
        yield from _leaves(f"{place}.{key}", inner)


def _last(place: str) -> str:
    return place.rpartition(".")[2]
