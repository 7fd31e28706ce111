"""Rows of a file of media prompts, read in one way wherever such a file is read."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rl_core.data.prepare.parallel import ordered_map
from rl_core.data.read.files.text_files import RawValue
from rl_core.data.read.readers import raw_values
from rl_core.data.read.remote import base_of
from rl_core.errors import DataError
from schemas.rows.media_checks import MediaLimits
from schemas.rows.media_prompts import MediaPrompt, media_prompt

OnBadRow = Callable[[Exception, str], None]
"""Function that receives the error of a row, and its place."""


def placed_prompts(
    path: Path,
    *,
    prompt_key: str = "prompt",
    media_root: Path | None = None,
    on_bad_row: OnBadRow | None = None,
    opened: MediaLimits | None = None,
    name: str | None = None,
) -> Iterator[tuple[MediaPrompt, str]]:
    """Yield each row of a file as a prompt, with its place.

    A row without a `prompt_id` gets `{filename}:{index of good rows}`, from 0. Relative URIs
    resolve against the file's folder, or `media_root`.
    Args: opened: open the files behind URIs, within these limits; unset opens none. name: instead
    of the file's, see `names_in_ids`.
    Raises: for a bad row, unless `on_bad_row` takes it: UnsupportedMediaError (a
    NotImplementedError) for media that no loader implements, otherwise DataError.
    """
    folder, num_good = media_root or base_of(path), 0

    def on_bad_line(number: int, error: DataError) -> None:
        assert on_bad_row is not None
        on_bad_row(error, f"{path}:{number}")

    rows = raw_values(path, prompt_key=prompt_key, on_bad_line=on_bad_line if on_bad_row else None)

    def made(raw: RawValue) -> tuple[MediaPrompt | Exception, str]:
        place = f"{path}:{raw.number}"
        row = {"prompt": raw.value} if isinstance(raw.value, str) else raw.value
        try:
            prompt = media_prompt(
                row,
                default_id="",
                folder=folder,
                place=place,
                prompt_key=prompt_key,
                opened=opened,
            )
        except (DataError, NotImplementedError) as error:
            return error, place
        return prompt, place

    for prompt, place in ordered_map(made, rows) if opened else map(made, rows):
        if isinstance(prompt, Exception):
            if on_bad_row is None:
                raise prompt
            on_bad_row(prompt, place)
            continue
        prompt_id = prompt.prompt_id or f"{name or path.name}:{num_good}"
        num_good += 1
        yield replace(prompt, prompt_id=prompt_id), place


def names_in_ids(paths: Sequence[Path]) -> list[str]:
    """Return the name of each file of a split for the ids of its rows: the file's own, which files
    after the first of that name get with a number, such as `rows.jsonl#2`.

    Numbers instead of folders: where the files lie does not change the prepared rows.
    """
    seen: Counter[str] = Counter()
    names: list[str] = []
    for path in paths:
        seen[path.name] += 1
        names.append(path.name if seen[path.name] == 1 else f"{path.name}#{seen[path.name]}")
    return names
