"""Chat messages as other systems write them: kept as one text, with content in parts, or with the
role `developer`."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from schemas.rows.problems import as_list, is_missing

MESSAGES_AS_TEXT = r"""^\s*\[\s*\{[\s\S]*["']role["'][\s\S]*\}\s*\]\s*$"""
"""Regular expression of texts that are a list of messages, in JSON or as Python prints it; RE2 and
`re` read it alike."""
_AS_TEXT = re.compile(MESSAGES_AS_TEXT)


def is_messages_text(text: str) -> bool:
    """Return True if a text is a list of messages, which is no prompt to train on."""
    return text.lstrip()[:1] == "[" and _AS_TEXT.match(text) is not None


def messages_of_text(text: str) -> object:
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


def plain_messages(messages: Sequence[object]) -> list[Any]:
    """Return messages with `system` for `developer`, content parts of text joined, and calls of
    tools as chat templates take them; any other item as it is, for a contract to refuse."""
    return [_plain(one) if isinstance(one, Mapping) else one for one in messages]


def called_tools(message: Mapping[str, object]) -> list[str | None]:
    """Return the names of the tools that a message calls; None for a call without one."""
    names: list[str | None] = []
    for call in as_list(message.get("tool_calls")) or []:
        function = call.get("function", call) if isinstance(call, Mapping) else {}
        name = function.get("name") if isinstance(function, Mapping) else None
        names.append(name if isinstance(name, str) and name else None)
    return names


def _plain(message: Mapping[str, object]) -> Mapping[str, object]:
    content, role, calls = (message.get(name) for name in ("content", "role", "tool_calls"))
    if isinstance(content, str) and role != "developer" and calls is None:
        return message
    made = dict(message)
    if role == "developer":
        made["role"] = "system"
    parts = as_list(content)
    texts = [part["text"] for part in parts or [] if _is_text(part)]
    if parts and len(texts) == len(parts):
        made["content"] = "".join(texts)
    if items := as_list(calls):
        made["tool_calls"] = [_plain_call(call) for call in items]
        made["content"] = "" if is_missing(content) else made["content"]
    return made


def _plain_call(call: object) -> object:
    """Return a call with its arguments as an object, which OpenAI writes as JSON text."""
    if not isinstance(call, Mapping):
        return call
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        read = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    if isinstance(read, dict):
        return {**call, "function": {**function, "arguments": read}}
    return call


def _is_text(part: object) -> bool:
    return (
        isinstance(part, Mapping)
        and part.get("type") in ("text", "input_text", "output_text")
        and isinstance(part.get("text"), str)
    )
