"""A row as its agent is given it: plain JSON, with its pictures in its messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl_core.data.prepare.chat_template import Message
from rl_core.envs.base import as_json
from rl_core.rollout.chat.observed import part_of
from rl_core.rollout.chat.vision import with_pictures


def given_row(prompt: Sequence[Message], columns: Mapping[str, Any]) -> dict[str, object]:
    """Return a row as JSON has it.

    Its pictures stand in the messages of `prompt` as parts of OpenAI's API, with their bytes, and
    once more in `images`, as the same addresses (`data:image/png;base64,…`). Args: columns: the
    row's others; `images` as `placed_images` returns them. Raises: DataError when a picture cannot
    be opened, or marks and pictures differ in number.
    """
    row = {"prompt": list(prompt), **columns}
    if images := list(columns.get("images") or []):
        parts = [part_of(image) for image in images]
        row["prompt"] = with_parts(prompt, parts)
        row["images"] = [part["image_url"]["url"] for part in parts]
    return {name: as_json(value) for name, value in row.items()}


def with_parts(prompt: Sequence[Message], pictures: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return a row's messages with its pictures in their places. Args: pictures: a part of each.
    Raises: DataError when marks and pictures differ in number."""
    left = iter(pictures)
    messages: list[Message] = []
    for message, placed in zip(prompt, with_pictures(prompt, len(pictures)), strict=True):
        kinds = [part["type"] for part in placed["content"]]
        if "image" not in kinds:
            messages.append(dict(message))
            continue
        content = [next(left) if part["type"] == "image" else part for part in placed["content"]]
        messages.append({**message, "content": content})
    return messages
