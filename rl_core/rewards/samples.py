"""Conversion of rollout rows to samples, and of images in any form to PIL images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rl_core.data.prepare.chat_template import with_reply
from rl_core.envs.base import Message
from rl_core.rewards.base import Sample

if TYPE_CHECKING:
    from PIL.Image import Image

    from rl_core.data_proto import DataProto


def samples_of(rollout: DataProto) -> list[Sample]:
    """Return one sample per row; see `RewardService.score` for the columns."""
    objects = rollout.non_tensor_batch
    tensors = rollout.batch

    def column(name: str, otherwise: object = None) -> Iterable[Any]:
        if name in objects:
            return objects[name]
        if tensors is not None and name in tensors:
            return tensors[name]
        return [otherwise] * len(rollout)

    rows = zip(
        *(
            column(name)
            for name in ("prompt", "replies", "ground_truth", "stop_reason", "images", "videos")
        ),
        column("last_reply_tokens", 0),
        column("metadata" if "metadata" in objects else "row"),
        column("turns"),
        strict=True,
    )
    samples: list[Sample] = []
    for prompt, replies, truth, reason, image, video, length, metadata, turns in rows:
        samples.append(
            Sample(
                prompt=prompt_text(prompt),
                replies=tuple(replies or ()),
                image=None if image is None else as_image(image),
                frames=() if video is None else tuple(as_image(frame) for frame in video),
                ground_truth=truth,
                num_tokens=int(length),
                is_truncated=reason in ("length", "context"),
                metadata=metadata or {},
                messages=conversation_of(prompt, replies, turns),
            )
        )
    return samples


def conversation_of(
    prompt: str | Sequence[Message] | None,
    replies: Sequence[str] | None,
    turns: Sequence[Mapping[str, object]] | None,
) -> tuple[Mapping[str, object], ...]:
    """Return the prompt's messages with what followed; empty if the prompt is a plain text.

    Args: replies: the model's own. turns: these with the messages of environments and tools.
    """
    if isinstance(prompt, str) or prompt is None or not replies:
        return ()
    said = [{"role": one["role"], "content": one["content"]} for one in turns or ()]
    if said:
        return (*with_reply(prompt, str(said[0]["content"])), *said[1:])
    if len(replies) == 1:
        return tuple(with_reply(prompt, replies[0]))
    return ()


def with_groups(samples: Sequence[Sample], groups: Sequence[str]) -> list[Sample]:
    """Return the samples with the last replies of their groups.

    Args: groups: name of each sample's group.
    """
    replies: dict[str, list[str]] = {}
    places = []
    for sample, group in zip(samples, groups, strict=True):
        texts = replies.setdefault(group, [])
        places.append(len(texts))
        texts.append(sample.text)
    shared = {group: tuple(texts) for group, texts in replies.items()}
    return [
        replace(sample, group=shared[group], place=place)
        for sample, group, place in zip(samples, groups, places, strict=True)
    ]


def prompt_text(prompt: str | Sequence[Message] | None) -> str:
    """Return the text of the last user message of a conversation; a plain prompt unchanged."""
    if isinstance(prompt, str) or prompt is None:
        return prompt or ""
    asked = [message for message in prompt if message.get("role") == "user"]
    content = asked[-1].get("content") if asked else ""
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or () if part.get("type") == "text")


def as_image(value: Any) -> Image:
    """Convert a value to an RGB image.

    Args: value: a PIL image; an array or tensor of whole numbers 0..255 or fractions 0..1, [H, W],
    [H, W, C] or [C, H, W] with C of 1 or 3. Raises: ValueError on another shape or on numbers that
    are not finite.
    """
    from PIL import Image

    if isinstance(value, Image.Image):
        return value.convert("RGB")
    pixels = np.asarray(value.detach().float().cpu() if hasattr(value, "detach") else value)
    if pixels.ndim == 3 and pixels.shape[0] in (1, 3) and pixels.shape[2] not in (1, 3):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3):
        raise ValueError(
            f"a picture is [H, W], [H, W, C] or [C, H, W] with 1 or 3 channels, got {pixels.shape}"
        )
    if not np.isfinite(pixels).all():
        raise ValueError("a picture's numbers must be finite")
    if np.issubdtype(pixels.dtype, np.floating):
        is_fraction = hasattr(value, "detach") and not value.is_floating_point()
        pixels = pixels if is_fraction else pixels * 255
    levels = np.clip(np.rint(pixels), 0, 255).astype(np.uint8)
    return Image.fromarray(np.repeat(levels, 3, axis=2) if levels.shape[2] == 1 else levels)
