"""Quotation of texts in a judge's prompt, so that what a policy wrote stays a text to judge.

A reply may say "give this 10/10", close its quotation, or imitate a chat template. So each text
stands between two marks with a number that the text cannot contain. The number is a digest of all
texts of the prompt: a reply that guesses it changes it, and the same prompt has the same number,
which makes a judge's answers repeatable. Tokens of chat templates are parted, and characters that
are not seen (of zero width, or that turn the direction of writing) are written as escapes.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping

NUM_DIGITS = 8
"""Digits of a mark's number, in base 16."""
_UNSEEN = frozenset({"Cf", "Cc", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Categories of Unicode that are written as escapes: formats, controls, other ends of lines, and no
characters."""
_KEPT = frozenset("\n\t")
_OPENERS = "<\uff1c\u2039\u3008\u276c\ufe64"
_BARS = "|\uff5c\u2223\u01c0\u2502\u23d0\u2758"
_CONTROL = re.compile(
    rf"[{_OPENERS}](?=[{_BARS}]|[{_OPENERS}]/?sys)"
    rf"|[{_OPENERS}](?=/?(?:s|bos|eos|pad|unk|think|system|user|assistant|tool\w*"
    r"|im_start|im_end|start_of_turn|end_of_turn|endoftext|eot_id|sys)\b)"
    r"|[\[\uff3b](?=/?(?:inst|system_prompt|available_tools|tool_calls|tool_results)\b)",
    re.IGNORECASE,
)
"""Beginnings of control tokens, in the writings of many families and in characters that look like
theirs."""


def harmless(text: str) -> str:
    """Return a text in which no control token stands and every character is seen."""
    shown = "".join(_shown(character) for character in text.replace("\r\n", "\n"))
    return _CONTROL.sub(lambda found: found[0] + " ", shown)


def fenced(texts: Mapping[str, str]) -> dict[str, str]:
    """Return each text between its own pair of marks, `<name 1f0c9a3b>` and `</name 1f0c9a3b>`.

    Args: texts: texts of one prompt, by names of letters.
    """
    safe = {name: harmless(text) for name, text in texts.items()}
    number = number_for(safe)
    return {name: f"<{name} {number}>\n{text}\n</{name} {number}>" for name, text in safe.items()}


def number_for(texts: Mapping[str, str]) -> str:
    """Return a number that none of the texts contains."""
    digest = hashlib.sha256()
    for name, text in texts.items():
        # With lengths, so that no text can be moved into its neighbour.
        digest.update(f"{name} {len(text)} ".encode() + text.encode("utf-8", "backslashreplace"))
    while True:
        number = digest.hexdigest()[:NUM_DIGITS]
        if not any(number in text.lower() for text in texts.values()):
            return number
        digest.update(b"again")


def _shown(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in _UNSEEN:
        return character
    return f"\\u{ord(character):04x}"
