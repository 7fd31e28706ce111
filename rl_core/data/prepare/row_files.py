"""The files of a recipe's training and held-out rows, whatever its domain."""

from pathlib import Path

from rl_core.data.overlap.found import Contamination
from rl_core.data.overlap.sides import Sides, sides_of
from rl_core.data.prepare.pair_sources import files_of, pair_sides, pair_sources
from rl_core.data.read.hub import DatasetNotHere
from rl_core.data.read.media_prompt_files import planned_prompt_files, prompt_files
from rl_core.data.read.recipe_files import planned_sources, resolve_sources
from rl_core.data.read.sources import data_files
from rl_core.errors import DataError
from rl_core.runtime.home import Home
from rl_core.runtime.user_paths import no_file, user_path
from schemas.recipe import Recipe

ARTIFACT = "art://"
SplitFiles = tuple[list[Path], list[Path]]
"""Files of training rows, and of held-out rows."""


def row_files(recipe: Recipe, home: Home) -> SplitFiles:
    """Return the files, with what is generated, fetched or mapped made on first use.

    All files of pairs are training files: the preparation tells them apart. Raises: DataError when
    an entry does not exist.
    """
    if recipe.has_pairs:
        return files_of(pair_sources(recipe, home.data)), []
    if recipe.draws:
        files = prompt_files(recipe, home.data)
        return files["train"], files["eval"]
    data = recipe.data
    train, held_out = (
        resolve_sources(entries, home.data, data.column_map) for entries in (data.train, data.eval)
    )
    return train, held_out + [file for files in set_files(recipe, home).values() for file in files]


def set_files(recipe: Recipe, home: Home) -> dict[str, list[Path]]:
    """Return the files of each set in `evaluation.sets`, made or fetched on first use."""
    files: dict[str, list[Path]] = {}
    for name, one in recipe.evaluation.sets.items():
        files[name] = resolve_sources(one.data, home.data, recipe.data.column_map)
    return files


def compared_rows(
    recipe: Recipe,
    home: Home,
    files: SplitFiles,
    contamination: Contamination,
    *,
    make: bool = True,
) -> Sides:
    """Return the rows of a recipe's files that are compared: training rows with those that the
    model is measured on.

    Args: make: as for `pair_sources`.
    """
    memo_dir = home.data / "memo"
    if not recipe.has_pairs:
        rows = recipe.domain.traits.rows
        return sides_of(*files, contamination.benchmarks, memo_dir, schema=rows)
    sources = pair_sources(recipe, home.data, make=make)
    located = {}
    for split, ones in sources.items():
        located[split] = [one for one in ones if one.path.exists()]
    return pair_sides(located, contamination.benchmarks, memo_dir)


def check_files_exist(recipe: Recipe, home: Home, beside: Path | None = None) -> None:
    """Check that the files which a recipe names are there; nothing is generated, fetched or mapped.

    Args: beside: the folder of the recipe's file. Raises: DataError naming entry and folders.
    """
    if recipe.has_pairs:
        pair_sources(recipe, home.data, make=False)
        return
    for part in ("train", "eval"):
        for number, entry in enumerate(getattr(recipe.data, part)):
            named = entry.get("path") if isinstance(entry, dict) else entry
            if named is None or str(named).startswith(ARTIFACT):
                continue
            try:
                files = data_files(entry, download=False)
            except DatasetNotHere:
                continue
            for file in files:
                if not user_path(file).exists():
                    raise DataError(f"data.{part}[{number}]: {named}: {no_file(file, beside)}")


def rows_that_are_here(recipe: Recipe, home: Home) -> SplitFiles:
    """Return those of the files that exist already; nothing is generated, fetched or mapped."""
    if recipe.has_pairs:
        sources = pair_sources(recipe, home.data, make=False)
        located = {}
        for split, ones in sources.items():
            located[split] = [one for one in ones if one.path.exists()]
        return files_of(located), []
    if recipe.draws:
        files, _ = planned_prompt_files(recipe, home.data)
        train, held_out = files["train"], files["eval"]
    else:
        sets = [entry for one in recipe.evaluation.sets.values() for entry in one.data]
        (train, _), (held_out, _) = (
            planned_sources(entries, home.data, recipe.data.column_map)
            for entries in (recipe.data.train, [*recipe.data.eval, *sets])
        )
    return [one for one in train if one.is_file()], [one for one in held_out if one.is_file()]
