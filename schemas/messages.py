"""Chat messages as other systems write them: kept as one text, with content in parts, or with the
role `developer`."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.problems import as_list

MESSAGES_AS_TEXT = r"""^\s*\[\s*\{[\s\S]*["']role["'][\s\S]*\}\s*\]\s*$"""
"""Regular expression of texts that are a list of messages, in JSON or as Python prints it; RE2 and
`re` read it alike."""
_AS_TEXT = re.compile(MESSAGES_AS_TEXT)


def is_messages_text(text: str) -> bool:
    """Return True if a text is a list of messages, which is no prompt to train on."""
    return text.lstrip()[:1] == "[" and _AS_TEXT.match(text) is not None


def messages_of_text(text: str) -> Any:
    """Return the messages that a text asks: those it holds as JSON, else itself as the user's.

    A list of messages that is not JSON stays the text that it is, which no contract accepts.
    """
    if not is_messages_text(text):
        return [{"role": "user", "content": text}]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    whole = isinstance(found, list) and all(isinstance(one, Mapping) for one in found)
    return found if whole else text


def plain_messages(messages: Sequence[Any]) -> list[Any]:
    """Return messages with `system` for `developer` and content parts of text joined; any other
    item as it is, for a contract to refuse."""
    return [_plain(one) if isinstance(one, Mapping) else one for one in messages]


def _plain(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content, role = message.get("content"), message.get("role")
    parts = None if isinstance(content, str) else as_list(content)
    texts = [part.get("text") for part in parts or [] if _is_text(part)]
    joined = bool(texts) and parts is not None and len(texts) == len(parts)
    if role != "developer" and not joined:
        return message
    changed = {"role": "system"} if role == "developer" else {}
    return {**message, **changed, **({"content": "".join(texts)} if joined else {})}


def _is_text(part: Any) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") in ("text", "input_text", "output_text")
        and isinstance(part.get("text"), str)
    )
