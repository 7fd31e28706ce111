"""Rows to items that fit: how every prompt is made, measured and filtered by length."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rl_core.data.prepare.items import PromptItem
from rl_core.data.prepare.prompt_items import ItemMaker
from rl_core.data.prepare.prompt_lengths import LengthCounter


class PromptSieve:
    """Makes items `{"prompt", "env_class", "env_extras", "uid"}` of rows, and keeps those whose
    templated prompt has at most `max_prompt_length` tokens; `num_dropped` counts the others."""

    def __init__(self, make: ItemMaker, counter: LengthCounter, max_prompt_length: int) -> None:
        self.make, self.counter, self.max_prompt_length = make, counter, max_prompt_length
        self.num_dropped = 0

    def of_rows(
        self, rows: Iterable[tuple[int, dict[str, object]]], path: Path | str
    ) -> tuple[list[PromptItem], list[int]]:
        """Return the items of a file's rows that fit, and their prompts' tokens.

        Args: rows: numbers and rows. Raises: DataError naming the row.
        """
        placed = [(row, f"{path}:{number}") for number, row in rows]
        items = [self.make(row, place, path) for row, place in placed]
        return self.of_items(items, [place for _, place in placed])

    def of_items(
        self, items: Sequence[PromptItem], places: Sequence[str]
    ) -> tuple[list[PromptItem], list[int]]:
        """Return those of some items that fit, and their prompts' tokens."""
        fitting = self.fitting(items, places)
        return [items[at] for at in fitting], list(fitting.values())

    def fitting(self, items: Sequence[PromptItem], places: Sequence[str]) -> dict[int, int]:
        """Return the indices of those that fit among some items, with their prompts' tokens."""
        lengths = self.counter.lengths(items, places)
        fitting = {}
        for at, length in enumerate(lengths):
            if length <= self.max_prompt_length:
                fitting[at] = length
        self.num_dropped += len(items) - len(fitting)
        return fitting
