"""Conditions of prompts for the transformer: encoded once per prompt, cached by content, shared by
all its samples.

Each prompt is encoded alone. In a batch its last bits would depend on the others, so a resumed run,
with an empty cache, would make other images than an uninterrupted one.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rl_core.data.prepare.items import MediaItem
from rl_core.errors import ModelError, RLTrainError
from rl_core.models.diffusion.base import Condition, DiffusionFamily, Size
from rl_core.models.diffusion.condition_images import ConditionImages
from rl_core.models.diffusion.guidance import PromptConditions, has_two_halves
from schemas.rows.media_checks import MediaRole, load_image

if TYPE_CHECKING:
    from PIL.Image import Image

CACHED_BYTES = 2**29
"""Size of the cache for prompts that come again, in bytes."""


@dataclass(frozen=True)
class Asked:
    """A prompt with its condition image, or the reason why it has none."""

    text: str
    image: Image | None = None
    error: str | None = None


class ConditionCache:
    """Encodes prompts and caches the result.

    Args: scale: guidance scale. size: size of the samples.
    """

    def __init__(
        self, family: DiffusionFamily, size: Size, scale: float, negative_prompt: str
    ) -> None:
        self.family, self.size, self.negative_prompt = family, size, negative_prompt
        self.is_guided = has_two_halves(family, scale)
        self._kept: OrderedDict[str, Condition] = OrderedDict()
        self._num_bytes = 0

    def __call__(self, items: Sequence[MediaItem]) -> list[PromptConditions | str]:
        """Return the conditions of each item, on the CPU, or the reason why it has none."""
        return self._conditions([_asked(item) for item in items])

    def blank(self) -> PromptConditions:
        """Return the conditions of an empty prompt, with a grey image if the model needs one.
        Raises: ModelError when that fails."""
        from PIL import Image

        needed = self.family.condition_images is ConditionImages.REQUIRED
        asked = Asked(
            "", Image.new("RGB", (self.size.width, self.size.height), "grey") if needed else None
        )
        found = self._conditions([asked])[0]
        if isinstance(found, str):
            raise ModelError(found)
        return found

    def _conditions(self, asked: Sequence[Asked]) -> list[PromptConditions | str]:
        wanted = [(one.text, one.image) for one in asked if one.error is None]
        if self.is_guided:
            wanted += [(self.negative_prompt, image) for _, image in wanted]
        known = self._encoded(wanted)
        return [one.error or self._of(one, known) for one in asked]

    def _of(self, asked: Asked, known: dict[str, Condition | str]) -> PromptConditions | str:
        positive = known[_key(asked.text, asked.image)]
        negative = known[_key(self.negative_prompt, asked.image)] if self.is_guided else None
        failed = next((one for one in (positive, negative) if isinstance(one, str)), None)
        if failed is not None or isinstance(positive, str) or isinstance(negative, str):
            return str(failed)
        return PromptConditions(positive, negative)

    def _encoded(self, wanted: Sequence[tuple[str, Image | None]]) -> dict[str, Condition | str]:
        by_key = {_key(*one): one for one in wanted}
        found: dict[str, Condition | str] = {
            key: self._kept[key] for key in by_key if key in self._kept
        }
        found |= {key: self._encode(*one) for key, one in by_key.items() if key not in found}
        for key in by_key:
            self._keep(key, found[key])
        return found

    def _encode(self, text: str, image: Image | None) -> Condition | str:
        """Return the prompt's conditions, or the reason why it has none."""
        try:
            with torch.no_grad():
                encoded = self.family.encode([text], [image], self.size)[0]
        except RLTrainError as error:
            return str(error)
        return Condition(
            {name: value.detach().cpu().clone() for name, value in encoded.tensors.items()}
        )

    def _keep(self, key: str, condition: Condition | str) -> None:
        if isinstance(condition, str):
            return
        if key in self._kept:
            self._kept.move_to_end(key)
            return
        self._kept[key] = condition
        self._num_bytes += _num_bytes(condition)
        while self._num_bytes > CACHED_BYTES and len(self._kept) > 1:
            self._num_bytes -= _num_bytes(self._kept.popitem(last=False)[1])


def _asked(item: MediaItem) -> Asked:
    """Return the prompt of an item with its condition image opened; `media_refs` hold at most
    one."""
    refs = []
    for one in item.get("media_refs") or []:
        if one["role"] == MediaRole.CONDITION:
            refs.append(one)
    try:
        return Asked(item["prompt"], load_image(refs[0]["uri"]) if refs else None)
    except (RLTrainError, OSError) as error:
        return Asked(item["prompt"], error=f"condition image {refs[0]['uri']}: {error}")


def _key(text: str, image: Image | None) -> str:
    digest = hashlib.sha256(text.encode())
    if image is not None:
        digest.update(f"{image.size}".encode() + image.tobytes())
    return digest.hexdigest()


def _num_bytes(condition: Condition) -> int:
    return sum(value.numel() * value.element_size() for value in condition.tensors.values())
