"""Prompt files of a recipe of the domain `diffusion`, by split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from rl_core.builtin.data.prompt_files import made_spec, materialise_prompts, planned_prompts
from rl_core.data.read.hub import DatasetNotHere
from rl_core.data.read.mapped import mapped_files, planned_mapped
from rl_core.data.read.sources import data_files
from rl_core.data.stages.diffusion import PROMPTS
from rl_core.data.stages.published import split_files
from rl_core.errors import RecipeError
from schemas.recipe import Recipe
from schemas.rows.column_map import ColumnMap
from schemas.sections.parts import Block

PromptFiles: TypeAlias = Mapping[str, list[Path]]
"""Files of `train` and of `eval`."""


def prompt_files(recipe: Recipe, data_dir: Path) -> PromptFiles:
    """Return the files of the recipe's entries; prompts are generated and datasets fetched on first
    use, then reused.

    Raises: DataError when an entry does not exist, or has no rows of its split; RecipeError when a
    file is named twice.
    """
    files: dict[str, list[Path]] = {}
    for split, entries in _of(recipe):
        files[split] = []
        for entry in entries:
            files[split] += _files(entry, split, data_dir, recipe.data.column_map)
    _check_named_once(files)
    return files


def planned_prompt_files(recipe: Recipe, data_dir: Path) -> tuple[PromptFiles, str]:
    """Return the same files without generating or fetching any, and a description of that work
    (empty if there is none)."""
    files: dict[str, list[Path]] = {}
    first = ""
    for split, entries in _of(recipe):
        files[split] = []
        for entry in entries:
            try:
                files[split] += _files(entry, split, data_dir, recipe.data.column_map, make=False)
            except DatasetNotHere as error:
                first = f"the dataset would be fetched first ({error})"
                continue
            if made_spec(entry) is not None and not files[split][-1].is_file():
                first = "the prompts would be made first"
            elif recipe.data.map and not files[split][-1].is_file():
                first = "the columns would be mapped first"
    _check_named_once(files)
    return files, first


def _check_named_once(files: PromptFiles) -> None:
    for split, paths in files.items():
        for file, times in Counter(paths).items():
            if times > 1:
                raise RecipeError(
                    f"data.{split}: {file} is named {times} times, and its prompts would have the "
                    "same ids; name it once"
                )


def _of(recipe: Recipe) -> list[tuple[str, list[str | Block]]]:
    return [("train", recipe.data.train), ("eval", recipe.data.eval)]


def _files(
    entry: str | Block,
    split: str,
    data_dir: Path,
    mapping: ColumnMap,
    *,
    make: bool = True,
) -> list[Path]:
    kind = made_spec(entry)
    if kind is not None and isinstance(entry, dict):
        return [
            (materialise_prompts if make else planned_prompts)(
                kind(**entry), data_dir / "generated"
            )
        ]
    if isinstance(entry, str) and (published := Path(entry).expanduser() / PROMPTS).is_file():
        return split_files(published, split)
    return (mapped_files if make else planned_mapped)(
        data_files(entry, download=make), mapping, data_dir
    )
