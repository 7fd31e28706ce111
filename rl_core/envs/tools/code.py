"""Extraction of the program from a reply: its last fenced block of Python."""

from __future__ import annotations

import re

_FENCE = re.compile(r"[ \t]*+(?:[-*>] +)?(`{3,}+|~{3,}+)[ \t]*+([^`\n]*+)$")
_PYTHON = frozenset(["", "python", "python3", "py", "py3", "python-3", "ipython"])


def after_thinking(reply: str) -> str:
    """Return the text after the last `</think>`; the whole reply if there is none."""
    return reply.rpartition("</think>")[2]


def last_code_block(reply: str) -> str | None:
    """Return the last fenced block after the thinking that is Python or names no language; None if
    there is none.

    A block that is never closed extends to the end, as in CommonMark. Line ends may be CRLF.
    """
    blocks: list[tuple[str, list[str]]] = []
    fence = ""
    for line in after_thinking(reply).splitlines():
        match = _FENCE.match(line)
        if fence and match and match[1].startswith(fence) and not match[2].strip():
            fence = ""
        elif fence:
            blocks[-1][1].append(line)
        elif match:
            fence = match[1]
            blocks.append((match[2].strip().split(" ")[0].strip("{.}").lower(), []))
    code = ["\n".join(lines) + "\n" for language, lines in blocks if language in _PYTHON]
    if code and code[-1].strip():
        return code[-1]
    return None
