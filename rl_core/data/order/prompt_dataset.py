"""SkyRL's `PromptDataset`: the prompts of some sources that fit the length limit."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from rl_core.data.check.batches import BATCH_ROWS
from rl_core.data.prepare.items import PromptItem
from rl_core.data.prepare.prompt_items import ItemMaker
from rl_core.data.prepare.prompt_lengths import LengthCounter
from rl_core.data.prepare.prompt_sieve import PromptSieve
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.data.read.readers import NumberedRow, read_rows
from rl_core.data.read.sources import data_files
from rl_core.data.store.prompt_rows import PreparedRows, is_prepared, load_prepared
from rl_core.data.store.spool import Spool
from rl_core.data.store.views import Joined, Selected
from rl_core.errors import DataError
from rl_core.runtime.home import Home


class PromptDataset(PromptSieve):
    """Items `{"prompt", "env_class", "env_extras", "uid"}` whose templated prompt has at most
    `max_prompt_length` tokens; `num_dropped` counts the others. `prepare-cache` uses the same
    sieve.

    Args: datasets: files (prepared, or of any format `read_rows` accepts), globs, folders, dataset
    names. num_workers: threads that count tokens. template_kwargs: the rollout's arguments of the
    chat template, so that both see the same prompt. cache_dir: folder of token counts by content;
    unset means the local state folder.
    Raises: DataError when a row has no usable prompt or environment, or nothing is left.
    """

    def __init__(
        self,
        datasets: Sequence[Path | str],
        tokenizer: Tokenizer,
        max_prompt_length: int,
        num_workers: int = 8,
        prompt_key: str = "prompt",
        env_class_key: str = "env_class",
        template_kwargs: Mapping[str, object] | None = None,
        default_env_class: str | None = None,
        cache_dir: Path | None = None,
    ) -> None:
        folder = cache_dir or Home.default().data / "memo" / "lengths"
        super().__init__(
            ItemMaker(env_class_key=env_class_key, default_env_class=default_env_class),
            LengthCounter(tokenizer, template_kwargs, num_workers=num_workers, cache_dir=folder),
            max_prompt_length,
        )
        parts: list[Sequence[PromptItem]] = []
        for path in (file for source in datasets for file in data_files(source)):
            if is_prepared(path):
                parts.append(self._fitting(load_prepared(path)))
            else:
                parts.append(self._made(read_rows(path, prompt_key=prompt_key), path))
        self.items: Sequence[PromptItem] = parts[0] if len(parts) == 1 else Joined(parts)
        if not self.items:
            raise DataError(
                f"no prompt is left of {', '.join(map(str, datasets)) or 'no files'}: "
                f"{self.num_dropped} have more than max_prompt_length {max_prompt_length} tokens"
            )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> PromptItem:
        return self.items[index]

    def _fitting(self, items: PreparedRows) -> Sequence[PromptItem]:
        """Return those of prepared items that fit, which stay on disk."""
        kept = array("I")
        for first in range(0, len(items), BATCH_ROWS):
            some = items[first : first + BATCH_ROWS]
            places = []
            for number in range(1, len(some) + 1):
                places.append(f"{items.path}:{first + number}")
            kept.extend(first + at for at in self.fitting(some, places))
        return Selected(items, kept)

    def _made(self, rows: Iterator[NumberedRow], path: Path) -> Sequence[PromptItem]:
        """Return the items that fit of a file's rows, kept in a temporary file."""
        items: Spool[PromptItem] = Spool()
        while batch := list(islice(rows, BATCH_ROWS)):
            for item in self.of_rows(batch, path)[0]:
                items.append(item)
        return items

    def collate_fn(self, items: list[PromptItem]) -> list[PromptItem]:
        """Return the items as a list: prompts are padded by the rollout, which knows the side."""
        return list(items)
