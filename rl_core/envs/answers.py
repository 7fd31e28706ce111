"""The answer that an environment read from a reply, as it says in its metadata."""

from __future__ import annotations

from collections.abc import Mapping

ANSWER_KEYS = ("answer", "pred", "solution")
"""Keys of a turn's metadata that hold the answer, by which majorities are counted; the first that
is there counts."""


def answer_read(metadata: Mapping[str, object]) -> str | None:
    """Return the answer as text, empty if the environment found none in the reply; None if it reads
    no answers.

    Args: metadata: of the last turn.
    """
    key = next((one for one in ANSWER_KEYS if one in metadata), None)
    if key is None:
        return None
    if metadata[key] is None:
        return ""
    return str(metadata[key]).strip()
