"""The pictures of prompts as tensors, the way a processor made them.

They are no tokens: a prompt's siblings share one `PromptMedia`, which is encoded once however many rows ask about it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from rl_core.errors import ModelError


@dataclass(frozen=True)
class PromptMedia:
    """What a processor gives besides tokens for the pictures of one prompt, in the order of their places in it."""

    tensors: dict[str, Tensor] = field(repr=False)
    """Such as `pixel_values`, `image_grid_thw`, `image_sizes`; the first axis counts pictures, or their patches."""
    num_tokens: int
    """Image tokens that stand for them in the prompt."""

    @cached_property
    def key(self) -> str:
        """Digest of the content; equal pictures are encoded once."""
        digest = hashlib.blake2b(digest_size=16)
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Distinct:
    """The different pictures among some rows."""

    media: list[PromptMedia]
    place_B: list[int | None]
    """For each row its media's position in `media`; None for a row without pictures."""


def distinct(media_B: Iterable[PromptMedia | None]) -> Distinct:
    """Equal media once, in the order of their first row."""
    places: dict[str, int] = {}
    found = Distinct([], [])
    for media in media_B:
        if media is None:
            found.place_B.append(None)
            continue
        if media.key not in places:
            places[media.key] = len(found.media)
            found.media.append(media)
        found.place_B.append(places[media.key])
    return found


def joined(media: Sequence[PromptMedia], device: torch.device) -> dict[str, Tensor]:
    """All media as the keyword arguments of one call of an image encoder.

    Raises: ModelError when their pictures cannot be stacked.
    """
    return {
        name: _stack(name, [one.tensors[name].to(device) for one in media if name in one.tensors])
        for name in {name: None for one in media for name in one.tensors}
    }


def _stack(name: str, tensors: list[Tensor]) -> Tensor:
    shapes = [tuple(tensor.shape[1:]) for tensor in tensors]
    if len(set(shapes)) == 1:
        return torch.cat(tensors)
    if len({(shape[1:]) for shape in shapes}) > 1 or tensors[0].dim() < 3:
        raise ModelError(f"{name} of different shapes {sorted(set(shapes))} cannot be encoded together")
    # Pictures cut into different numbers of tiles: the encoder counts the real ones itself.
    most = max(shape[0] for shape in shapes)
    return torch.cat([torch.nn.functional.pad(t, (0, 0) * (t.dim() - 2) + (0, most - t.shape[1])) for t in tensors])
