"""The question that a row asks, as text and pictures, whatever the row's contract is.

System messages are no part of a question. Neither are the reward and the other columns, nor the
answers of a pair.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from rl_core.errors import DataError
from schemas.rows.media_checks import is_remote, load_image, local_path, resolve_uri
from schemas.rows.messages import messages_of_text
from schemas.rows.problems import as_list, get
from schemas.rows.response_rows import PARAMS

COLUMNS = ("prompt", "caption", "question", "problem", "instruction", "query", "input", "text")
"""Columns in which a question is looked for, in this order."""
_MESSAGE, _PART, _SPACES = "\x02", "\x03", " \t\r\n"

Question: TypeAlias = tuple[str, str]
"""Text and media of a row's question."""


def question_of(row: Mapping[str, object]) -> Question:
    """Return the question of a row as it is written; its text is empty if the row asks nothing.

    Two rows ask the same if their messages agree in role and text up to surrounding spaces, and
    they name the same media.
    """
    parts = []
    for message in _messages(row):
        if message.get("role") == "system":
            parts.append("")
        else:
            parts.append(
                f"{message.get('role')}{_PART}{_text(message.get('content')).strip(_SPACES)}"
            )
    return _MESSAGE.join(parts).strip(_MESSAGE), _PART.join(map(_medium, media_of(row)))


def text_of(row: Mapping[str, object]) -> str:
    """Return the text of all messages of a row's question, a line each."""
    asked = [one for one in _messages(row) if one.get("role") != "system"]
    return "\n".join(_text(message.get("content")) for message in asked)


def media_of(row: Mapping[str, object]) -> list[object]:
    """Return the pictures of a row's question as they are written: paths, URIs, or objects that
    hold one, or bytes."""
    media = as_list(get(row, "media_refs", "media", "images")) or []
    if (image := get(row, "image")) is not None:
        media = as_list(image) or [image]
    for message in _messages(row):
        for part in as_list(message.get("content")) or []:
            if isinstance(part, Mapping) and (found := get(part, "image", "image_url", "bytes")):
                media.append(found)
    return media


def digest(row: Mapping[str, object]) -> bytes:
    """Return a digest of `question_of`."""
    joined = "\x00".join(question_of(row))
    return hashlib.blake2b(joined.encode("utf-8", "surrogatepass"), digest_size=12).digest()


class Pixels:
    """Identity of pictures: a digest of their decoded pixels, whatever their file's format.

    Those behind an address are not fetched, and those that cannot be decoded are known by their
    bytes or name.
    """

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, media: Sequence[object], folder: Path | str) -> tuple[str, ...]:
        """Return the identity of each picture. Args: folder: where relative paths begin."""
        return tuple(self._of(one, folder) for one in media)

    def _of(self, one: object, folder: Path | str) -> str:
        content = one.get("bytes") if isinstance(one, Mapping) else one
        if isinstance(content, bytes):
            return self._decoded(hashlib.sha256(content).hexdigest(), content)
        named = get(one, "uri", "path", "url") if isinstance(one, Mapping) else one
        if not isinstance(named, str) or not named.strip() or is_remote(named):
            return str(named)
        uri = resolve_uri(named, folder)
        if is_remote(uri):
            return uri
        return self._decoded(uri, str(local_path(uri)))

    def _decoded(self, key: str, source: str | bytes) -> str:
        if key not in self._known:
            try:
                image = load_image(source)
                size = f"{image.width}x{image.height}"
                self._known[key] = f"{size} {hashlib.sha256(image.tobytes()).hexdigest()[:24]}"
            except (DataError, OSError):
                self._known[key] = key
        return self._known[key]


def _messages(row: Mapping[str, object]) -> list[Mapping[str, object]]:
    params = row.get(PARAMS)
    prompt = get(params, "input") if isinstance(params, Mapping) else get(row, *COLUMNS)
    if isinstance(prompt, Mapping):  # OpenAI's pairs: the conversation lies in `input`
        prompt = get(prompt, "messages")
    if isinstance(prompt, str):
        prompt = messages_of_text(prompt)
    return [one for one in as_list(prompt) or [] if isinstance(one, Mapping)]


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = []
    for part in as_list(content) or []:
        if isinstance(part, Mapping):
            parts.append(get(part, "text"))
    return "\n".join(part for part in parts if isinstance(part, str))


def _medium(one: object) -> str:
    if isinstance(one, Mapping):
        content = one.get("bytes")
        if isinstance(content, bytes):
            return hashlib.sha256(content).hexdigest()
        return str(get(one, "uri", "path"))
    return str(one)
