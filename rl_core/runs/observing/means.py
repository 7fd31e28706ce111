"""Metrics of an iteration: the means over its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def means_of_steps(steps: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the steps that have it: a step without a row to train on
    lacks some."""
    names = dict.fromkeys(name for step in steps for name in step)
    values = {name: [step[name] for step in steps if name in step] for name in names}
    return {name: sum(found) / len(found) for name, found in values.items()}
