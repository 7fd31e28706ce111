"""The terminal of the `rl-train` command, where a text is shown as it is.

Rich reads `[red]` and `:train:` in a string as markup, and a terminal reads escape sequences. A
path, a reply or a row may hold any of them, so every command prints through this module.
"""

from __future__ import annotations

from typing import Literal
from unicodedata import bidirectional, category

from rich.console import Console as RichConsole
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status
from rich.table import Table as RichTable
from rich.text import Text

_DIRECTIONS = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
"""Marks that make a terminal show the characters after them in another order."""


def visible(text: str) -> str:
    """Return a text with what steers a terminal written out, such as `\\x1b`; line breaks and tabs
    stay."""
    return "".join(one.encode("unicode_escape").decode() if _steers(one) else one for one in text)


def _steers(one: str) -> bool:
    if one in "\n\t":
        return False
    return category(one) in ("Cc", "Cs") or bidirectional(one) in _DIRECTIONS


class Console(RichConsole):
    """A terminal without markup, emoji codes and highlighting."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def say(self, text: str) -> None:
        """Print a text; its long lines are left to the terminal."""
        self.print(visible(text), soft_wrap=True)

    def spinner(self) -> Spinner:
        """Return a line that shows what is being done."""
        return Spinner("", console=self)

    def progress(self) -> Progress:
        """Return progress bars, one a phase."""
        return Progress(
            TextColumn("{task.description:18}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self,
        )


class Spinner(Status):
    """A line that shows what is being done, while it has started."""

    def tell(self, text: str) -> None:
        """Replace the text of the line."""
        self.update(Text(visible(text)))


class Table(RichTable):
    """A table of texts under a title at its left."""

    def __init__(self, title: str) -> None:
        super().__init__(title=Text(visible(title), style="table.title"), title_justify="left")

    def column(
        self,
        name: str,
        *,
        justify: Literal["left", "right"] = "left",
        overflow: Literal["fold", "ellipsis"] = "fold",
    ) -> None:
        """Add a column."""
        self.add_column(visible(name), justify=justify, overflow=overflow)

    def row(self, *cells: str, end_section: bool = False) -> None:
        """Add a row."""
        self.add_row(*map(visible, cells), end_section=end_section)
