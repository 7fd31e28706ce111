"""Images of prompts as tensors, in the form of a processor's output.

They are separate from tokens: a prompt's siblings share one `PromptMedia`, which is encoded once
for all rows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl_core.errors import ModelError

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class PromptMedia:
    """Output of a processor besides tokens, for the images of one prompt in their order."""

    tensors: dict[str, Tensor] = field(repr=False)
    """Tensors such as `pixel_values`, `image_grid_thw`, `image_sizes`; the first axis counts
    images, or their patches."""
    num_tokens: int
    """Number of image tokens in the prompt."""
    pictures: tuple[Image, ...] = field(default=(), repr=False, compare=False)
    """The images themselves, for an engine that reads them with a processor of its own; empty for
    others."""

    @cached_property
    def key(self) -> str:
        """Digest of the content; equal images are encoded once."""
        digest = hashlib.blake2b(digest_size=16)
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def tensors_alone(media: PromptMedia | None) -> PromptMedia | None:
    """Return images without `pictures`, which training does not need."""
    return replace(media, pictures=()) if media is not None and media.pictures else media


def gone_on(*shown: PromptMedia | None) -> PromptMedia | None:
    """Return the images of a conversation that went on with more of them, turn by turn. Raises:
    ModelError when they cannot be stacked."""
    pieces = [one for one in shown if one is not None]
    if len(pieces) < 2:
        return pieces[0] if pieces else None
    device = next(iter(pieces[0].tensors.values())).device
    pictures = [picture for one in pieces for picture in one.pictures]
    num_tokens = sum(one.num_tokens for one in pieces)
    return PromptMedia(joined(pieces, device), num_tokens, tuple(pictures))


@dataclass(frozen=True)
class Distinct:
    """The distinct images among some rows."""

    media: list[PromptMedia]
    place_B: list[int | None]
    """Index in `media` of each row's media; None for a row without images."""


def distinct(media_B: Iterable[PromptMedia | None]) -> Distinct:
    """Return equal media once, in the order of their first row."""
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
    """Return all media as the keyword arguments of one call of an image encoder.

    Raises: ModelError when their images cannot be stacked.
    """
    stacked: dict[str, Tensor] = {}
    rows: dict[str, list[Tensor]] = {}
    for one in media:
        for name, tensor in one.tensors.items():
            rows.setdefault(name, []).append(tensor.to(device))
    for name, tensors in rows.items():
        stacked[name] = _stack(name, tensors)
    return stacked


def _stack(name: str, tensors: list[Tensor]) -> Tensor:
    shapes = [tuple(tensor.shape[1:]) for tensor in tensors]
    if len(set(shapes)) == 1:
        return torch.cat(tensors)
    if len({(shape[1:]) for shape in shapes}) > 1 or tensors[0].dim() < 3:
        raise ModelError(
            f"{name} of different shapes {sorted(set(shapes))} cannot be encoded together"
        )
    # Pictures cut into different numbers of tiles: the encoder counts the real ones itself.
    most = max(shape[0] for shape in shapes)
    return torch.cat(
        [
            torch.nn.functional.pad(t, (0, 0) * (t.dim() - 2) + (0, most - t.shape[1]))
            for t in tensors
        ]
    )
