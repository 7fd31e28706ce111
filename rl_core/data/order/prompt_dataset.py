"""SkyRL's `PromptDataset`: the prompts of some sources that fit the length limit."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_core.data.prepare.prompt_items import Item, ItemMaker
from rl_core.data.prepare.prompt_lengths import LengthCounter
from rl_core.data.prepare.prompt_sieve import PromptSieve
from rl_core.data.read.readers import read_rows
from rl_core.data.read.sources import data_files
from rl_core.data.store.prompt_rows import is_prepared, iter_prepared
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
        tokenizer: object,
        max_prompt_length: int,
        num_workers: int = 8,
        prompt_key: str = "prompt",
        env_class_key: str = "env_class",
        template_kwargs: Mapping[str, Any] | None = None,
        default_env_class: str | None = None,
        cache_dir: Path | None = None,
    ) -> None:
        folder = cache_dir or Home.default().data / "memo" / "lengths"
        super().__init__(
            ItemMaker(env_class_key=env_class_key, default_env_class=default_env_class),
            LengthCounter(tokenizer, template_kwargs, num_workers=num_workers, cache_dir=folder),
            max_prompt_length,
        )
        self.items: list[Item] = []
        for path in (file for source in datasets for file in data_files(source)):
            if is_prepared(path):
                items = list(iter_prepared(path))
                places = [f"{path}:{number}" for number in range(1, len(items) + 1)]
                self.items += self.of_items(items, places)[0]
            else:
                self.items += self.of_rows(read_rows(path, prompt_key=prompt_key), path)[0]
        if not self.items:
            raise DataError(
                f"no prompt is left of {', '.join(map(str, datasets)) or 'no files'}: "
                f"{self.num_dropped} have more than max_prompt_length {max_prompt_length} tokens"
            )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]

    def collate_fn(self, items: list[Item]) -> list[Item]:
        """Return the items as a list: prompts are padded by the rollout, which knows the side."""
        return list(items)
