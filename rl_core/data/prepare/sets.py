"""Preparation of a named set of held-out rows: a cache of its own, so that another set leaves the
training rows as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rl_core.data.prepare.prompts import PreparationSettings, prepare_cache
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import DataError
from schemas.receipts import SetCache


def prepare_set(
    name: str,
    files: Sequence[Path],
    settings: PreparationSettings,
    tokenizer: Callable[[], Tokenizer],
) -> SetCache:
    """Publish the rows of a set, if they are not there.

    Args: name: of the set, for messages. settings: those of the recipe, with a name for the
    folder. Raises: DataError naming the set when none of its rows is left.
    """
    try:
        receipt = prepare_cache(files, [], settings, tokenizer=tokenizer)
    except DataError as error:
        raise DataError(f"evaluation.sets.{name}: {error}") from error
    return SetCache(
        run_hash=receipt.run_hash,
        path=str(Path(receipt.path) / "train.parquet"),
        num_rows=receipt.num_train_rows,
        dropped=receipt.dropped,
    )
