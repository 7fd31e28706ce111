"""Conversation rows as their tokens will be trained, checked before they are prepared."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.data.prepare.chat_template import ChatTemplate
from rl_core.data.prepare.taught_turns import taught_tokens
from rl_core.data.prepare.tokenizer import Tokenizer
from schemas.receipts import Rejection
from schemas.rows.problems import Problem
from schemas.sections.sft import TaughtTurns

if TYPE_CHECKING:
    from rl_core.data.check.batches import Batch


class Lessons:
    """Check of the answers of some rows.

    Args: turns: turns that are trained. needed: True if every row must have an answer.
    """

    def __init__(
        self, tokenizer: Tokenizer, template: ChatTemplate, turns: TaughtTurns, *, needed: bool
    ) -> None:
        self.tokenizer, self.template, self.turns, self.needed = tokenizer, template, turns, needed
        self.counts_media = hasattr(tokenizer, "count_items")

    def refuse(self, batch: Batch, path: Path | str) -> None:
        """Add the rows that cannot be trained to a batch's rejections."""
        found = []
        for number, row in batch.accepted():
            if (problem := self._problem(row)) is not None:
                found.append(problem.rejection(str(path), number))
        batch.rejections = sorted([*batch.rejections, *found], key=_row_of)

    def _problem(self, row: dict[str, Any]) -> Problem | None:
        completion = row.get("completion")
        if not completion:
            if not self.needed:
                return None
            expected = "an answer, since it is to be trained"
            return Problem("completion", "no answer to learn", None, expected)
        if self.counts_media:
            return None  # a template of the model's processor, which the worker has
        try:
            taught_tokens(self.tokenizer, self.template, row["prompt"], completion, self.turns)
        # Templates run as Jinja and raise what they like; only here is the row known.
        except Exception as error:
            said = completion[-1].get("content")
            return Problem("completion", f"cannot be trained ({error})", said, "other messages")
        return None


def _row_of(rejection: Rejection) -> int:
    return rejection.row
