"""Extraction of the answer from a reply. The last candidate counts, so listing several gains
nothing."""

from __future__ import annotations

import re
from enum import StrEnum

from rl_core.envs.tools.tags import tagged


class AnswerPlace(StrEnum):
    """Place of the answer in a reply."""

    LAST_NUMBER = "last_number"
    """The last number of the reply, without thousands separators."""
    ANSWER_TAG = "answer_tag"
    """The text inside the last `<answer>...</answer>`."""
    BOXED = "boxed"
    r"""The text inside the last `\boxed{...}`."""
    LAST_LINE = "last_line"
    """The last line that is not empty."""
    TEXT = "text"
    """The whole reply."""


# A minus is a sign only where nothing it could subtract from stands right before it: "10-3" ends in
# 3.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])-)?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)


def read_answer(reply: str, place: AnswerPlace) -> str | None:
    """Return the answer at `place`, stripped, or None if there is none."""
    readers = {
        AnswerPlace.LAST_NUMBER: last_number,
        AnswerPlace.ANSWER_TAG: last_tag,
        AnswerPlace.BOXED: last_boxed,
        AnswerPlace.LAST_LINE: last_line,
        AnswerPlace.TEXT: str,
    }
    answer = readers[place](reply)
    if answer is not None:
        return answer.strip() or None
    return None


def written_at(answer: str, place: AnswerPlace) -> str:
    """Return a reply with the answer at `place`."""
    if place is AnswerPlace.ANSWER_TAG:
        return f"<answer>{answer}</answer>"
    if place is AnswerPlace.BOXED:
        return f"\\boxed{{{answer}}}"
    return answer


def last_number(reply: str) -> str | None:
    """Return the last number: sign, thousands separators (removed) and decimals; `42.` reads as
    42."""
    found = _NUMBER.findall(reply.replace("\u2212", "-"))
    if found:
        return found[-1].replace(",", "")
    return None


def last_tag(reply: str) -> str | None:
    """Return the text inside the last closed `<answer>` tag."""
    found = tagged(reply, "answer")
    return found[-1] if found else None


def last_boxed(reply: str) -> str | None:
    r"""Return the text inside the last `\boxed{...}`, with balanced braces; None if it is never
    closed."""
    _, marker, tail = reply.rpartition("\\boxed{")
    return _balanced(tail) if marker else None


def all_boxed(reply: str) -> list[str]:
    r"""Return the texts inside all closed `\boxed{...}`, in order; a box inside a box is an entry
    of its own."""
    return [inner for tail in reply.split("\\boxed{")[1:] if (inner := _balanced(tail)) is not None]


def _balanced(text: str) -> str | None:
    """Return the text up to the brace that closes the one before `text`."""
    depth = 1
    for position, character in enumerate(text):
        depth += {"{": 1, "}": -1}.get(character, 0)
        if depth == 0:
            return text[:position]
    return None


def last_line(reply: str) -> str | None:
    """Return the last line that is not empty."""
    lines = [line for line in reply.splitlines() if line.strip()]
    return lines[-1] if lines else None
