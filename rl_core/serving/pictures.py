"""Pictures in the messages of a request: fetched and checked before the chat template sees them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from rl_core.data.prepare.chat_template import Message
from rl_core.errors import DataError
from rl_core.rollout.chat.observed import part_of, shown_pictures
from rl_core.serving.api_errors import ApiError
from schemas.rows.media_checks import load_image

MAX_REMEMBERED = 1024
"""Number of pictures that are known to be readable, since each request shows the earlier ones."""
_readable: OrderedDict[bytes, None] = OrderedDict()
_remembering = threading.Lock()


def has_pictures(messages: Sequence[Message]) -> bool:
    """Return True if a message shows a picture."""
    return bool(shown_pictures(messages))


def opened(messages: Sequence[Message], why_no_pictures: str) -> list[Message]:
    """Return messages whose pictures stand in them as readable files in base64.

    An address is fetched, so this may take long. Args: why_no_pictures: of a model that sees none;
    empty for others. Raises: ApiError, naming the part of the message.
    """
    told: list[Message] = []
    for number, message in enumerate(messages):
        is_text = isinstance(message["content"], str)
        told.append(message if is_text else _opened(number, message, why_no_pictures))
    return told


def _opened(number: int, message: Message, why_no_pictures: str) -> Message:
    parts: list[Mapping[str, Any]] = []
    for place, part in enumerate(message["content"]):
        if part["type"] != "image_url":
            parts.append(part)
            continue
        param = f"messages.{number}.content.{place}.image_url"
        if why_no_pictures:
            raise ApiError(f"{param}: {why_no_pictures}", param)
        try:
            parts.append(_readable_part(part))
        except DataError as error:
            raise ApiError(f"{param}: {error}", param) from error
    return {**message, "content": parts}


def _readable_part(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a picture with its bytes. Raises: DataError."""
    url: str = part["image_url"]["url"]
    if not url.startswith("data:"):
        part = part_of(url)
        url = part["image_url"]["url"]
    head, _, content = url.partition(",")
    try:
        file = base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise DataError(
            f"{head},{content[:20]}… is not base64 ({error}); encode the whole file, without line "
            "breaks"
        ) from error
    _check_readable(file)
    return part


def _check_readable(file: bytes) -> None:
    digest = hashlib.blake2b(file, digest_size=16).digest()
    with _remembering:
        if digest in _readable:
            return
    try:
        load_image(file)
    except DataError as error:
        raise DataError(f"{error}; send a whole PNG, JPEG, WebP or GIF file") from error
    with _remembering:
        _readable[digest] = None
        while len(_readable) > MAX_REMEMBERED:
            _readable.popitem(last=False)
