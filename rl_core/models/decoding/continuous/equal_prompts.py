"""Requests with the same prompt, which is read once for all of them.

The episodes of an agent ask one by one, so siblings arrive as requests of their own. Each has its
own random numbers; only such requests may be reordered without another result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from rl_core.models.media import PromptMedia


class Prompted(Protocol):
    """A request as it is seen here; a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def token_ids(self) -> list[int]:
        """The prompt."""
        ...

    @property
    def num_replies(self) -> int:
        """Number of replies."""
        ...

    @property
    def media(self) -> PromptMedia | None:
        """Media of the prompt besides text."""
        ...

    @property
    def seed(self) -> int | None:
        """Seed of the replies' own random numbers."""
        ...


R = TypeVar("R", bound=Prompted)


def side_by_side(requests: Sequence[Prompted]) -> list[int]:
    """Return the places of requests in an order in which equal prompts follow each other."""
    by_prompt: dict[object, list[int]] = {}
    for place, request in enumerate(requests):
        by_prompt.setdefault(_prompt(request, place), []).append(place)
    return [place for places in by_prompt.values() for place in places]


def each_once(requests: Sequence[R]) -> list[R]:
    """Return one request for equal prompts that follow each other, with all their replies; only
    good for reading the prompts."""
    found: list[R] = []
    last: object = None
    for place, request in enumerate(requests):
        prompt = _prompt(request, place)
        if found and prompt == last:
            more = found[-1].num_replies + request.num_replies
            found[-1] = replace(found[-1], num_replies=more)
        else:
            found.append(request)
        last = prompt
    return found


def own_generators(
    requests: Sequence[Prompted], device: torch.device
) -> dict[int, torch.Generator]:
    """Return the generators of the replies that have a seed, by number of the reply."""
    found: dict[int, torch.Generator] = {}
    first = 0
    for request in requests:
        if request.seed is not None:
            for number in range(request.num_replies):
                generator = torch.Generator(device).manual_seed(request.seed + number)
                found[first + number] = generator
        first += request.num_replies
    return found


def _prompt(request: Prompted, place: int) -> object:
    """Return what equal prompts have in common; a request that stands alone has its place."""
    if request.seed is None:
        return place
    # Other pictures may have as many tokens.
    shown = None if request.media is None else request.media.key
    return tuple(request.token_ids), shown
