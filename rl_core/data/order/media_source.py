"""UniRL's `MultimodalRLDataSource`: prompts with media from files, in batches of distinct
prompts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rl_core.data.order.prompt_source import PromptSource
from rl_core.data.read.readers import raw_values
from rl_core.data.read.remote import base_of
from rl_core.data.read.sources import data_files
from rl_core.errors import DataError
from schemas.media_prompts import MediaPrompt, media_prompt


def read_media_prompts(
    source: Path | str | dict[str, Any],
    *,
    prompt_key: str = "prompt",
    media_root: Path | None = None,
) -> Iterator[MediaPrompt]:
    """Yield the prompts of a file, glob, folder or dataset, in order.

    A row without a `prompt_id` gets `{filename}:{index of accepted rows}`, from 0. Relative URIs
    resolve against the folder of the file that names them, or `media_root`.
    Raises: UnsupportedMediaError (a NotImplementedError) for media that no loader implements;
    DataError for other bad rows and for an id that two rows of the source have, since their groups
    would merge.
    """
    place_of: dict[str, str] = {}
    for file in data_files(source):
        folder = media_root or base_of(file)
        for index, raw in enumerate(raw_values(file, prompt_key=prompt_key)):
            place = f"{file}:{raw.number}"
            row = {"prompt": raw.value} if isinstance(raw.value, str) else raw.value
            prompt = media_prompt(
                row,
                default_id=f"{file.name}:{index}",
                folder=folder,
                place=place,
                prompt_key=prompt_key,
            )
            if (first := place_of.setdefault(prompt.prompt_id, place)) != place:
                raise DataError(
                    f"{place} field prompt_id: {prompt.prompt_id!r} is also the id of {first}; "
                    "ids differ"
                )
            yield prompt


class MultimodalRLDataSource(PromptSource[MediaPrompt]):
    """Endless batches of `prompts_per_rollout` distinct prompts: shuffled by seed, the last partial
    batch dropped.

    Prompts are not repeated here; `rl_core.data.order.groups` makes the samples of each. No image
    is opened, and a file of texts alone imports no vision package.

    Args: data_path: a file, glob, folder or dataset, or a list of them.
    """

    def __init__(
        self,
        data_path: Path | str | Sequence[Path | str],
        prompts_per_rollout: int,
        seed: int = 0,
        *,
        prompt_key: str = "prompt",
        media_root: Path | None = None,
    ) -> None:
        paths = [data_path] if isinstance(data_path, str | Path) else list(data_path)
        prompts = [
            prompt
            for path in paths
            for prompt in read_media_prompts(path, prompt_key=prompt_key, media_root=media_root)
        ]
        ids = [prompt.prompt_id for prompt in prompts]
        if len(set(ids)) < len(ids):
            repeated = next(name for name in ids if ids.count(name) > 1)
            raise DataError(
                f"{', '.join(map(str, paths))}: prompt_id {repeated!r} appears twice; ids differ"
            )
        super().__init__(prompts, prompts_per_rollout, seed)
