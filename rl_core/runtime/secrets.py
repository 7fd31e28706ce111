"""Removal of passwords and tokens from everything that is stored: log lines, tracebacks, recipes of
runs.

Three things count as secrets: text in the place of a password or token (`://user:HERE@host`,
`password=HERE`, `Authorization: Bearer HERE`), text that looks like a well-known kind of token, and
the values of environment variables with secret-sounding names. Technical terms such as
`max_new_tokens` or `pad_token` do not count.
"""

from __future__ import annotations

import logging
import os
import re
import traceback
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

HIDDEN = "***"
MIN_LENGTH = 6
"""Shortest value of an environment variable that is hidden: `1` or `true` would be hidden
everywhere."""

_NAME = (
    r"\w*pass(?:word|wd|phrase)|(?<=[_.\-])pwd|secret|credentials?|private[_-]?key|"
    r"(?:api|access|account|secret)[_-]?key|"
    r"sas[_-]?token|"
    r"(?:(?:api|auth|access|refresh|session|bearer|hf|hub|security|id|secret)[_-]?)?token|"
    r"auth[_-]?string"
)
_KEY = rf"(?:[\w.\-]*[_.\-])?(?:{_NAME})(?:[_-]?id)?"
_VOCABULARY = (
    r"(?:[\w.\-]*[_.\-])?"
    r"(?:pad|eos|bos|unk|sep|cls|mask|image|video|stop|special|next|new|per)_?token"
)
"""Names of a tokenizer's tokens, which are not secrets."""
_VARIABLE = re.compile(rf"(?:.*_)?(?:{_NAME}|key|key_id)", re.IGNORECASE)

_USER_INFO = re.compile(r"(?P<before>\w://[^\s/:@'\"]*):[^\s/@'\"]+@")
_BEARER = re.compile(r"(?P<before>\b(?:bearer|basic)\s+)[A-Za-z0-9+/_.~=-]{8,}", re.IGNORECASE)
_PAIR = re.compile(
    rf"(?<![\w.\-])(?P<before>(?!{_VOCABULARY}\b){_KEY}['\"]?\s*[=:]\s*['\"]?)"
    rf"(?!bearer |basic )[^\s'\",;&)}}\]]+",
    re.IGNORECASE,
)
_SHAPES = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|sk-[A-Za-z0-9_-]{16,}|"
    r"(?:AKIA|ASIA)[A-Z0-9]{16}|xox[abprs]-[A-Za-z0-9-]{10,}|glpat-[\w-]{16,}|"
    r"pnu_[A-Za-z0-9]{16,})\b"
)


def is_secret_name(name: str) -> bool:
    """Return True if a key of this name holds a password or token."""
    return bool(re.fullmatch(_KEY, name, re.IGNORECASE)) and not re.fullmatch(
        _VOCABULARY, name, re.IGNORECASE
    )


def redact(text: str) -> str:
    """Return `text` with `***` in place of every secret."""
    for value in _secrets_of_environment(frozenset(os.environ.items())):
        text = text.replace(value, HIDDEN)
    text = _USER_INFO.sub(rf"\g<before>:{HIDDEN}@", text)
    text = _BEARER.sub(rf"\g<before>{HIDDEN}", text)
    text = _PAIR.sub(rf"\g<before>{HIDDEN}", text)
    return _SHAPES.sub(HIDDEN, text)


def redact_values(value: object, name: str = "") -> Any:
    """Redact nested plain values.

    Args: name: name of the key that holds `value`.
    """
    if isinstance(value, Mapping):
        return {key: redact_values(entry, str(key)) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(redact_values(entry, name) for entry in value)
    if isinstance(value, str):
        if value and is_secret_name(name):
            return HIDDEN
        return redact(value)
    return value


class RedactedRecord(logging.LogRecord):
    """A log record without secrets, whichever logger and handler it passes."""

    # Any: the arguments are those of `logging`, which differ between versions of Python.
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        message = super().getMessage()
        if (redacted := redact(message)) != message:
            self.msg, self.args = redacted, None
        if self.exc_info and self.exc_info[0] is not None:
            # Formatters take the text that is there instead of making their own.
            self.exc_text = redact("".join(traceback.format_exception(*self.exc_info)).rstrip("\n"))


def redact_logs() -> None:
    """Redact every log record of this process from now on."""
    logging.setLogRecordFactory(RedactedRecord)


@lru_cache(maxsize=4)
def _secrets_of_environment(environment: frozenset[tuple[str, str]]) -> list[str]:
    """Return the values to hide wherever they occur, the longest first. A path only says where a
    secret is, and is not hidden."""
    values = set()
    for name, value in environment:
        if _VARIABLE.fullmatch(name) and len(value) >= MIN_LENGTH:
            values.add(value)
    return sorted((value for value in values if not os.path.exists(value)), key=len, reverse=True)
