"""Expansion of prompts to the samples of a rollout: each prompt `samples_per_prompt` times,
siblings adjacent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rl_core.errors import DataError

T = TypeVar("T")


@dataclass(frozen=True)
class Sample(Generic[T]):
    """One sample to roll out."""

    prompt: T
    group_id: int
    """Number of the sample's group, unique in the run and shared by siblings."""
    sample_id: str
    """Name of the sample, `prompt:<group id>:sample:<index among the siblings>`."""


def expand_groups(prompts: Sequence[T], samples_per_prompt: int, first_group_id: int = 0) -> list[Sample[T]]:
    """Return `len(prompts) x samples_per_prompt` samples.

    Args: first_group_id: group of the first prompt; continue counting from the last rollout's, so
    that a repeated prompt gets a new group.
    """
    if samples_per_prompt < 1:
        raise DataError(f"samples_per_prompt {samples_per_prompt}: expected at least 1")
    return [
        Sample(prompt, group, f"prompt:{group}:sample:{j}")
        for group, prompt in enumerate(prompts, start=first_group_id)
        for j in range(samples_per_prompt)
    ]
