"""Markdown tables and cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from inspect import cleandoc


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; its cells may hold any text."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def purpose(text: str | type[object]) -> str:
    """Return the first paragraph of a docstring, on one line."""
    documented = text if isinstance(text, str) else text.__doc__ or ""
    return " ".join(cleandoc(documented).split("\n\n")[0].split())


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")
