"""A tool's result in the form of a message's content: a text, or parts of texts and pictures."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

from PIL.Image import Image

Part = dict[str, Any]
"""A part of a message: `{"type": "text", "text": …}`, or a picture as in
`rl_core.rollout.chat.observed`."""
Content = str | list[Part]
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA")
"""Modes of PIL that a PNG keeps."""
PICTURES = ("image", "image_url")
"""Types of the parts that are pictures."""


def content_of(result: object) -> Content:
    """Return what a model reads of a function's result: a text as it is, pictures of PIL and parts
    of a message as parts, anything else as JSON."""
    if isinstance(result, Image) or _is_picture(result):
        return [_part_of(result)]
    if _has_picture(result):
        return [_part_of(one) for one in result]  # type: ignore[attr-defined]  # a sequence
    return as_text(result)


def as_text(result: object) -> str:
    """Return a result as a text: one as it is, anything else as JSON."""
    if isinstance(result, str):
        return result
    return json.dumps(result, ensure_ascii=False, default=str)


def picture_of(content: str, mime_type: str) -> Part:
    """Return the part of a picture. Args: content: its bytes as base64."""
    return {"type": "image_url", "image_url": {"url": f"data:{mime_type};base64,{content}"}}


def shortened(content: Content, most: int) -> Content:
    """Return a content without the middle of texts that have more than so many characters."""
    if isinstance(content, str):
        return _short(content, most)
    parts = []
    for part in content:
        is_text = part.get("type") == "text"
        parts.append({"type": "text", "text": _short(part["text"], most)} if is_text else part)
    return parts


def _has_picture(result: object) -> bool:
    if isinstance(result, str | bytes) or not isinstance(result, Sequence):
        return False
    return any(isinstance(one, Image) or _is_picture(one) for one in result)


def _is_picture(value: object) -> bool:
    if not isinstance(value, Mapping):
        return False
    kind = value.get("type")
    return kind in PICTURES and kind in value


def _part_of(value: object) -> Part:
    if isinstance(value, Image):
        file = io.BytesIO()
        (value if value.mode in PNG_MODES else value.convert("RGB")).save(file, "PNG")
        return picture_of(base64.b64encode(file.getvalue()).decode(), "image/png")
    if isinstance(value, Mapping):
        is_text = value.get("type") == "text" and isinstance(value.get("text"), str)
        if is_text or _is_picture(value):
            return dict(value)
    return {"type": "text", "text": as_text(value)}


def _short(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
