"""Sphinx extension that converts the Markdown of this project's docstrings to reStructuredText.

autodoc expects reStructuredText; the docstrings have code in single backticks, bullets, tables and
sections such as `Args:`.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from sphinx.application import Sphinx

_SECTION = re.compile(r"(?:Args|Returns|Raises|Yields|Axes|Shapes):")
_ARGUMENT = re.compile(r"    (\w+(?:, \w+)*): ")


def setup(app: Sphinx) -> None:
    """Register the conversion with autodoc."""
    app.connect("autodoc-process-docstring", _process)


def to_rst(lines: list[str]) -> list[str]:
    """Convert the lines of a docstring to reStructuredText."""
    converted: list[str] = []
    for is_blank, block in groupby(lines, key=lambda line: not line.strip()):
        if not is_blank:
            converted += [*_block(list(block)), ""]
    return converted


def _process(_app: Any, _what: str, _name: str, _obj: Any, _options: Any, lines: list[str]) -> None:
    lines[:] = to_rst(lines)


def _block(lines: list[str]) -> Iterator[str]:
    if all(line.startswith(("|", "    ")) for line in lines):
        yield from ["::", "", *(f"    {line}" for line in lines)]
        return
    for item in _items(lines):
        argument = _ARGUMENT.match(item)
        if argument:
            yield from ["", f"* ``{argument[1]}``: {_text(item[argument.end() :])}"]
        elif item.startswith("* "):
            yield from ["", f"* {_text(item[2:])}"]
        else:
            yield from ["", _text(item.strip())]


def _items(lines: list[str]) -> list[str]:
    """Join the lines of each paragraph, bullet and argument, since code may go over a line end."""
    items: list[str] = []
    for line in lines:
        if not items or line.startswith("* ") or _ARGUMENT.match(line) or _SECTION.match(line):
            items.append(line)
        else:
            items[-1] += f" {line.strip()}"
    return items


def _text(text: str) -> str:
    """Escape a line, except for its code."""
    parts = re.split(r"`([^`]+)`", text)
    code = (rf"\ ``{part.strip()}``\ " for part in parts[1::2])
    plain = [re.sub(r"([\\*_|`])", r"\\\1", part) for part in parts[::2]]
    return plain[0] + "".join(one + after for one, after in zip(code, plain[1:], strict=True))
