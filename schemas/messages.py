"""Chat messages that a file keeps as one text, as tables without nested columns do."""

import json
import re
from collections.abc import Mapping
from typing import Any

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
