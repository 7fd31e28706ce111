"""UniRL's `MultimodalRLDataSource`: prompts with media, in batches of distinct prompts."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_core.data.order.prompt_source import PromptSource
from rl_core.data.order.registry import data_sources
from rl_core.data.read.media_rows import names_in_ids, placed_prompts
from rl_core.data.read.sources import data_files
from rl_core.data.store.id_places import IdPlaces
from rl_core.data.store.key_table import KeyTable, key_of
from rl_core.data.store.spool import Spool
from rl_core.errors import DataError
from schemas.rows.media_prompts import MediaPrompt


def read_media_prompts(
    source: Path | str | dict[str, object],
    *,
    prompt_key: str = "prompt",
    media_root: Path | None = None,
) -> Iterator[MediaPrompt]:
    """Yield the prompts of a file, glob, folder or dataset, in order.

    Raises: as `placed_prompts`; DataError also for an id that two rows of the source have, since
    their groups would merge.
    """
    files = data_files(source)
    ids = IdPlaces(files)
    for file, name in zip(files, names_in_ids(files), strict=True):
        for prompt, place in placed_prompts(
            file, prompt_key=prompt_key, media_root=media_root, name=name
        ):
            if (problem := ids.problem(prompt.prompt_id, place)) is not None:
                raise DataError(problem.at(place))
            yield prompt


@data_sources.register("multimodal")
class MultimodalRLDataSource(PromptSource[Any]):
    """Batches of distinct prompts with their media: shuffled by seed, the last partial batch
    dropped.

    Prompts are not repeated here; the rollout makes the samples of each. No image is opened, and a
    file of texts alone imports no vision package.

    Args: data_path: a file, glob, folder or dataset, or a list of them; or rows that a run
    prepared, as the trainer gives them. prompts_per_rollout: size of a batch.
    """

    def __init__(
        self,
        data_path: Path | str | Sequence[Path | str] | Sequence[Mapping[str, object]],
        prompts_per_rollout: int,
        seed: int = 0,
        *,
        prompt_key: str = "prompt",
        media_root: Path | None = None,
    ) -> None:
        given = [data_path] if isinstance(data_path, str | Path) else data_path
        if not all(isinstance(one, str | Path) for one in given):
            super().__init__(given, prompts_per_rollout, seed)
            return
        prompts: Spool[MediaPrompt] = Spool()
        known = KeyTable()
        for path in given:
            assert isinstance(path, str | Path)
            for prompt in read_media_prompts(path, prompt_key=prompt_key, media_root=media_root):
                if known.setdefault(key_of(prompt.prompt_id), len(prompts)) != len(prompts):
                    raise DataError(
                        f"{', '.join(map(str, given))}: prompt_id {prompt.prompt_id!r} appears "
                        "twice; ids differ"
                    )
                prompts.append(prompt)
        super().__init__(prompts, prompts_per_rollout, seed)
