"""Files of a recipe's data entries."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from rl_core.builtin.data.builtin_rows import (
    BuiltinSpec,
    materialise_questions,
    planned_questions,
)
from rl_core.builtin.data.log_lines import (
    LogLinesSpec,
    materialise_log_lines,
    planned_log_lines,
)
from rl_core.builtin.data.open_prompts import (
    SentencesSpec,
    materialise_sentences,
    planned_sentences,
)
from rl_core.builtin.data.pair_questions import (
    PairQuestionsSpec,
    materialise_pair_questions,
    planned_pair_questions,
)
from rl_core.builtin.data.picture_rows import PicturesSpec, materialise_pictures, planned_pictures
from rl_core.builtin.data.prompt_files import made_spec, materialise_prompts, planned_prompts
from rl_core.builtin.data.reasoning_problems import GenerateSpec, materialise, planned_path
from rl_core.data.check.parts import CheckSettings
from rl_core.data.overlap.found import Contamination
from rl_core.data.prepare.prompts import PreparationSettings
from rl_core.data.read.hub import DatasetNotHere
from rl_core.data.read.mapped import mapped_files, planned_mapped
from rl_core.data.read.sources import data_files
from rl_core.envs import accepted_ground_truths
from rl_core.envs.agent import is_agent
from rl_core.envs.registration import TOOLS_KEY, kinds_of, portable_options, spec
from rl_core.envs.trials.settings import TrialSettings, source_digest
from rl_core.runtime.home import Home
from schemas.recipe import Recipe
from schemas.rows.column_map import ColumnMap
from schemas.sections.parts import Block


def resolve_sources(
    entries: Sequence[str | Block], data_dir: Path, mapping: ColumnMap
) -> list[Path]:
    """Return the files of the entries; problems are generated and datasets fetched on first use,
    then reused.

    Args: mapping: of the columns of files and datasets; rows generated here are not mapped.
    """
    files: list[Path] = []
    for entry in entries:
        if _is_task(entry):
            files.append(materialise(GenerateSpec(**entry), data_dir / "generated"))
        elif _is_pictures(entry):
            files.append(materialise_pictures(PicturesSpec(**entry), data_dir / "generated"))
        elif _is_log_lines(entry):
            files.append(materialise_log_lines(LogLinesSpec(**entry), data_dir / "generated"))
        elif _is_builtin(entry):
            files.append(materialise_questions(BuiltinSpec(**entry), data_dir / "generated"))
        elif _is_pair_questions(entry):
            spec_of = PairQuestionsSpec(**entry)
            files.append(materialise_pair_questions(spec_of, data_dir / "generated"))
        elif _is_sentences(entry):
            files.append(materialise_sentences(SentencesSpec(**entry), data_dir / "generated"))
        else:
            files += mapped_files(data_files(entry), mapping, data_dir)
    return files


def planned_sources(
    entries: Sequence[str | Block], data_dir: Path, mapping: ColumnMap
) -> tuple[list[Path], str]:
    """Return the same files without generating or fetching any, and a description of that work
    (empty if there is none)."""
    files: list[Path] = []
    first = ""
    for entry in entries:
        if _is_task(entry):
            files.append(planned_path(GenerateSpec(**entry), data_dir / "generated"))
            first = first if files[-1].is_file() else "the problems would be generated first"
            continue
        if _is_pictures(entry):
            files.append(planned_pictures(PicturesSpec(**entry), data_dir / "generated"))
            first = first if files[-1].is_file() else "the pictures would be drawn first"
            continue
        if _is_log_lines(entry):
            files.append(planned_log_lines(LogLinesSpec(**entry), data_dir / "generated"))
            first = first if files[-1].is_file() else "the log lines would be written first"
            continue
        if _is_builtin(entry):
            files.append(planned_questions(BuiltinSpec(**entry), data_dir / "generated"))
            first = first if files[-1].is_file() else "the built-in rows would be written first"
            continue
        if _is_pair_questions(entry):
            spec_of = PairQuestionsSpec(**entry)
            files.append(planned_pair_questions(spec_of, data_dir / "generated"))
            first = first if files[-1].is_file() else "the questions would be written first"
            continue
        if _is_sentences(entry):
            files.append(planned_sentences(SentencesSpec(**entry), data_dir / "generated"))
            first = first if files[-1].is_file() else "the requests would be written first"
            continue
        try:
            found = planned_mapped(data_files(entry, download=False), mapping, data_dir)
        except DatasetNotHere as error:
            first = f"the dataset would be fetched first ({error})"
            continue
        if mapping and not all(file.is_file() for file in found):
            first = "the columns would be mapped first"
        files += found
    return files, first


def check_settings(recipe: Recipe) -> CheckSettings:
    """Return the settings with which a recipe's rows are checked."""
    schema = recipe.domain.traits.rows
    if not recipe.domain.traits.plays:
        return CheckSettings({}, schema=schema)
    allowed = accepted_ground_truths() | _own_environments(recipe)
    return CheckSettings(
        allowed, recipe.data.default_env_class, schema=schema, trials=trial_settings(recipe)
    )


def contamination_of(recipe: Recipe, data_dir: Path, *, make: bool = True) -> Contamination:
    """Return a recipe's settings of the comparison with held-out rows and benchmarks.

    Args: make: False leaves out benchmarks that would be generated or fetched first.
    Raises: DataError when a benchmark does not exist.
    """
    wanted = recipe.validation
    if make:
        files = benchmark_files(wanted.benchmarks, data_dir)
    else:
        files = [one for one in planned_benchmarks(recipe, data_dir)[0] if one.is_file()]
    return Contamination(wanted.contamination, tuple(files))


def benchmark_files(entries: Sequence[str | dict[str, Any]], data_dir: Path) -> list[Path]:
    """Return the files of benchmarks, generated or fetched on first use. Raises: DataError when one
    does not exist."""
    files: list[Path] = []
    for entry in entries:
        kind = made_spec(entry)
        if kind is not None and isinstance(entry, dict):
            files.append(materialise_prompts(kind(**entry), data_dir / "generated"))
        else:
            files += resolve_sources([entry], data_dir, ColumnMap({}))
    return files


def planned_benchmarks(recipe: Recipe, data_dir: Path) -> tuple[list[Path], str]:
    """Return the same files without generating or fetching any, and a description of that work
    (empty if there is none)."""
    files: list[Path] = []
    first = ""
    for entry in recipe.validation.benchmarks:
        kind = made_spec(entry)
        if kind is not None and isinstance(entry, dict):
            found, work = [planned_prompts(kind(**entry), data_dir / "generated")], ""
        else:
            found, work = planned_sources([entry], data_dir, ColumnMap({}))
        files, first = [*files, *found], first or work
    return files, first


def trial_settings(recipe: Recipe) -> TrialSettings:
    """Return how a recipe's rows are tried with their environments."""
    wanted = recipe.validation.oracle_rows
    options = portable_options(recipe.environments)
    return TrialSettings(
        options,
        timeout_s=recipe.validation.build_timeout_s,
        oracle_rows=None if wanted == "all" else wanted,
        sources=source_digest(options),
    )


def validation_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings that validation and preparation must share."""
    return {
        "allowed_env_classes": accepted_ground_truths() | _own_environments(recipe),
        "default_env_class": recipe.data.default_env_class,
        "policy": recipe.data.on_invalid,
        "max_bad_fraction": recipe.data.max_bad_fraction,
        "trials": replace(trial_settings(recipe), oracle_rows=0),
    }


def _is_task(entry: str | Block) -> TypeGuard[Block]:
    return isinstance(entry, dict) and "task" in entry


def _is_pictures(entry: str | Block) -> TypeGuard[Block]:
    return isinstance(entry, dict) and "pictures" in entry


def _is_log_lines(entry: str | Block) -> TypeGuard[Block]:
    return isinstance(entry, dict) and "log_lines" in entry


def _is_builtin(entry: str | Block) -> TypeGuard[Block]:
    return isinstance(entry, dict) and "builtin" in entry


def _is_pair_questions(entry: str | Block) -> TypeGuard[Block]:
    return isinstance(entry, dict) and "fixture" in entry


def _is_sentences(entry: str | Block) -> TypeGuard[Block]:
    return isinstance(entry, dict) and "sentences" in entry


def _own_environments(recipe: Recipe) -> dict[str, frozenset[str]]:
    """Return the environments outside the project, which the recipe names by import path."""
    named = {}
    for env_id, options in recipe.environments.items():
        is_own = ":" in env_id or "target" in options or TOOLS_KEY in options
        if is_own or is_agent(env_id, options):
            named[env_id] = options
    return {env_id: kinds_of(spec(env_id, options).load()) for env_id, options in named.items()}


def preparation_settings(
    recipe: Recipe, home: Home, tokenizer_id: str, *, make: bool = True
) -> PreparationSettings:
    """Return a recipe's settings for `prepare_cache` and `plan_cache`.

    Args: make: False generates and fetches no benchmark.
    """
    return PreparationSettings(
        name=recipe.name,
        tokenizer_id=tokenizer_id,
        max_prompt_length=recipe.data.max_prompt_length,
        template_kwargs=recipe.model.chat_template_kwargs,
        cache_root=home.cache,
        memo_dir=home.data / "memo",
        schema=recipe.domain.traits.rows,
        turns=recipe.sft.turns,
        contamination=contamination_of(recipe, home.data, make=make),
        **validation_settings(recipe),
    )
