"""Texts of single tokens, by the tokenizer of a run's model, if it is still on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rl_core.errors import ModelError
from rl_core.models.model_path import check_path
from rl_core.reporting.run_record import RunRecord

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"


class TokenTexts:
    """Decodes tokens one by one."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, str] = {}

    @classmethod
    def of(cls, record: RunRecord, models: Path) -> TokenTexts:
        """Return those of a run's language model. Nothing is fetched: without a tokenizer here, a
        token is shown as its number."""
        from tokenizers import Tokenizer

        folders = [record.folder.export]
        # A model that was removed since is no error: the export may have the tokenizer.
        with suppress(ModelError):
            folders.append(Path(check_path(record.recipe.model.path, models)))
        found = [folder / FILE for folder in folders if (folder / FILE).is_file()]
        return cls(Tokenizer.from_file(str(found[0])) if found else None)

    def __call__(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token; a part of a character shows as �."""
        for one in set(ids) - self._known.keys():
            self._known[one] = self._text(one)
        return [self._known[one] for one in ids]

    def _text(self, token: int) -> str:
        if self._tokenizer is None:
            return f"⟨{token}⟩"
        return self._tokenizer.decode([token], skip_special_tokens=False)
