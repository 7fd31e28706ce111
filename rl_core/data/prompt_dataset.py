"""SkyRL's `PromptDataset`: the prompts of some files that fit the length limit."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_core.data.prepared import is_prepared, iter_prepared
from rl_core.data.prompt_items import Item, ItemMaker, prompt_lengths
from rl_core.data.readers import read_rows
from rl_core.errors import DataError


class PromptDataset:
    """Items `{"prompt", "env_class", "env_extras", "uid"}` whose templated prompt has at most `max_prompt_length`
    tokens; `num_dropped` counts the others.

    Args: datasets: files, prepared or of any format `read_rows` takes. num_workers: part of SkyRL's signature and
    unused, since a fast tokenizer is parallel in itself. template_kwargs: what the rollout passes to the chat
    template, so that both see the same prompt.
    Raises: DataError when a row has no usable prompt or environment, or nothing is left.
    """

    def __init__(
        self,
        datasets: Sequence[Path | str],
        tokenizer: Any,
        max_prompt_length: int,
        num_workers: int = 8,
        prompt_key: str = "prompt",
        env_class_key: str = "env_class",
        template_kwargs: Mapping[str, Any] | None = None,
        default_env_class: str | None = None,
    ) -> None:
        del num_workers
        make = ItemMaker(env_class_key=env_class_key, default_env_class=default_env_class)
        self.items: list[Item] = []
        self.num_dropped = 0
        for path in datasets:
            placed = list(_placed_items(path, make, prompt_key))
            items, places = [item for item, _ in placed], [place for _, place in placed]
            lengths = prompt_lengths(tokenizer, items, places, template_kwargs or {})
            kept = [item for item, length in zip(items, lengths, strict=True) if length <= max_prompt_length]
            self.num_dropped += len(items) - len(kept)
            self.items += kept
        if not self.items:
            raise DataError(
                f"no prompt is left of {', '.join(map(str, datasets)) or 'no files'}: {self.num_dropped} have more "
                f"than max_prompt_length {max_prompt_length} tokens"
            )

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Item:
        return self.items[index]

    def collate_fn(self, items: list[Item]) -> list[Item]:
        """A batch is the list of its items: prompts are padded by the rollout, which knows the side."""
        return list(items)


def _placed_items(path: Path | str, make: ItemMaker, prompt_key: str) -> Iterator[tuple[Item, str]]:
    if is_prepared(path):
        yield from ((item, f"{path}:{number}") for number, item in enumerate(iter_prepared(path), start=1))
    else:
        rows = read_rows(path, prompt_key=prompt_key)
        yield from ((make(row, f"{path}:{number}"), f"{path}:{number}") for number, row in rows)
