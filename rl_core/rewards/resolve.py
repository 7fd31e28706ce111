"""Classes and settings of the entries of a recipe's `rewards`. Light to import, since it is part of
reading a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_core.errors import RecipeError
from rl_core.rewards.base import Modality, Scorer, reward_scorers

TAKEN = ("environment",)
"""Keys that have another meaning in metrics."""


def resolve_scorers(
    blocks: Sequence[Mapping[str, object]], produced: Modality | None = None
) -> list[tuple[str, type[Scorer], Scorer.Config]]:
    """Return key, class and Config of every entry of `rewards`.

    Args: produced: kind of output of the recipe's policy. Raises: RecipeError on an entry that is
    not valid, a key used twice, or a scorer of another modality.
    """
    found: dict[str, tuple[str, type[Scorer], Scorer.Config]] = {}
    for index, block in enumerate(blocks):
        where = f"rewards.{index}"
        cls, config = reward_scorers.resolve(block, where)
        key = config.key or _usual_key(block)
        if key in found or key in TAKEN:
            raise RecipeError(
                f"{where}: the key {key!r} is taken; give this entry a key of its own (key: ...)"
            )
        if produced is not None and produced not in cls.modalities:
            scored = ", ".join(sorted(cls.modalities))
            raise RecipeError(
                f"{where}: {key} scores {scored}; this recipe's policy produces {produced}"
            )
        found[key] = key, cls, config
    return list(found.values())


def stated_weights(blocks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the weight of every entry of `rewards` by its key, as the recipe states it.

    No class is imported, so that a report can be written where a scorer of the user's is not.
    """
    usual = Scorer.Config().weight
    weights: dict[str, float] = {}
    for block in blocks:
        weights[str(block.get("key") or _usual_key(block))] = float(block.get("weight", usual))
    return weights


def _usual_key(block: Mapping[str, object]) -> str:
    return str(block.get("name") or str(block["target"]).rpartition(":")[2].lower())
