"""The command `rl-train validate`: rows against their contract and their environments, before any
run."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.data import Mapped, column_map
from flows.contamination_table import print_contamination
from flows.lists.listing import Json
from rl_core.errors import RecipeError
from rl_core.runtime.home import Home
from rl_core.services.addresses import Server, check_addresses
from schemas.rows.contract import SchemaName

if TYPE_CHECKING:
    from rl_core.data.check.parts import CheckSettings
    from rl_core.data.check.tokens import TokenSettings
    from rl_core.data.overlap.found import Contamination
    from rl_core.data.overlap.sides import Sides
    from rl_core.data.prepare.row_files import SplitFiles
    from schemas.receipts import RowGroup, ValidationReport
    from schemas.recipe import Recipe

ALL = "all"


class ReportFormat(StrEnum):
    """Output format of a report."""

    TABLE = "table"
    """A table for people."""
    JSON = "json"
    """The whole report as one object."""


def validate(
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            help="Files (.parquet .jsonl .json .txt), globs, folders, dataset names; unset: those "
            "of --recipe"
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Take what a run of this recipe would take: contract, columns, options"),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(help="An environment of your own: my_pkg.env:MyEnv, or NAME=my_pkg.env:MyEnv"),
    ] = None,
    schema: Annotated[
        SchemaName | None, typer.Option(help="Contract of the rows; unset: recognised")
    ] = None,
    format: Annotated[
        ReportFormat, typer.Option(help="How to print the report")
    ] = ReportFormat.TABLE,
    env_class: Annotated[
        str | None, typer.Option(help="Environment of rows that name none")
    ] = None,
    prompt_key: Annotated[str, typer.Option(help="Column that holds the prompt")] = "prompt",
    held_out: Annotated[
        list[str] | None, typer.Option(help="Evaluation files, which must share no question")
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="Benchmarks whose questions training rows must not repeat"),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Count the tokens of each prompt with this model's template")
    ] = None,
    max_prompt_length: Annotated[
        int | None,
        typer.Option(min=1, help="Longest prompt in tokens; unset: the recipe's, or 512"),
    ] = None,
    oracle_rows: Annotated[
        str | None,
        typer.Option(
            metavar="N|all", help="Rows that are played with a right, a wrong and an empty answer"
        ),
    ] = None,
    media_root: Annotated[
        Path | None, typer.Option(help="Where relative media paths begin")
    ] = None,
    check_remote: Annotated[
        bool, typer.Option("--check-remote", help="Fetch remote media too")
    ] = False,
    mapped: Mapped = None,
    as_json: Json = False,
) -> None:
    """Validate rows against their contract and build their environments; every bad row is listed,
    and the exit code is 2 if there is one."""
    from rl_core.data.check.files import apply_policy, check_files
    from rl_core.data.check.tokens import with_tokens
    from rl_core.data.read.mapped import mapped_files
    from rl_core.data.read.sources import data_files
    from schemas.rows.media_checks import MediaLimits

    format = ReportFormat.JSON if as_json else format
    home = Home.default()
    add_environments(env or [])
    if media_root is not None and not media_root.is_dir():
        raise RecipeError(f"--media-root {media_root}: no such folder")
    reports = []
    for stage, settled in _recipes_of(recipe, home).items():
        settings = _settings(settled, schema, env_class, oracle_rows)
        settings = replace(
            settings,
            prompt_key=prompt_key,
            media_root=media_root,
            limits=MediaLimits(check_remote=check_remote),
        )
        mapping = column_map(mapped)
        if settled is not None and not mapping:
            mapping = settled.data.column_map

        if paths:
            files = [file for one in paths for file in data_files(one)]
            train = mapped_files(files, mapping, home.data)
            files = [file for one in held_out or [] for file in data_files(one)]
            evaluation = mapped_files(files, mapping, home.data)
        else:
            train, evaluation = _files_of(settled, home)
        contamination, sides = _compared(
            settled, against, home, None if paths else (train, evaluation)
        )
        report = check_files(
            train,
            settings,
            held_out=evaluation,
            contamination=contamination,
            sides=sides,
            rejects_dir=home.data / "rejects" / "cli",
            memo_dir=home.data / "memo",
            runner=_cluster(),
        )
        tokens = _tokens(settled, model, max_prompt_length, home)
        if tokens is not None:
            report = with_tokens(report, [*train, *evaluation], settings, tokens)
        if format is ReportFormat.JSON:
            typer.echo(report.model_dump_json(indent=2))
        else:
            if stage:
                typer.echo(f"stage {stage}:")
            print_report(report)
        reports.append(report)
    for report in reports:
        apply_policy(report, "fail", 0.0)


def add_environments(entries: list[str]) -> None:
    """Register the user's environments for this process.

    Args: entries: `NAME=my_pkg.env:MyEnv`; without a name, the ids that the module registers by
    itself, else the class's name in lower case (`multiply` for `MultiplyEnv`).
    Raises: EnvError on a class that is no environment, or a name that is taken.
    """
    from rl_core.envs.registration import register, registered, spec

    for entry in entries:
        name, is_named, target = entry.rpartition("=")
        if ":" not in target:
            raise RecipeError(f"--env {entry}: write it as my_pkg.env:MyEnv")
        before = set(registered())
        cls = spec(target).load()
        if is_named:
            register(name, target)
        elif set(registered()) == before:
            register(cls.__name__.removesuffix("Env").lower(), target)


def print_report(report: "ValidationReport") -> None:
    """Print the counts, the contract, and tables of refused and of doubtful rows."""
    typer.echo(f"{report.num_accepted} of {report.num_rows} rows are good; {report.explanation}")
    typer.echo(f"contract: {_contracts(report)}")
    _print_groups("Refused rows", report.problems, "expected")
    _print_groups("Rows that are good, but look at them", report.warnings, "found")
    if report.warnings:
        typer.echo(f"all of these: {report.warnings_path}")
    print_contamination(report.contamination)
    for what, why in report.untried.items():
        typer.echo(f"note: {what}: {why}")


def _print_groups(title: str, groups: "list[RowGroup]", remark: str) -> None:
    from flows.console import Console, Table

    if not groups:
        return
    table = Table(title)
    for column in ("field", "reason", "rows", "first at", "value", remark):
        table.column(column, justify="right" if column == "rows" else "left")
    for group in groups:
        places: dict[tuple[str, str], list[str]] = {}
        for one in group.first:
            place = f"{Path(one.file).name}:{one.row}"
            places.setdefault((one.value, one.expected), []).append(place)
        head = (group.field, group.reason, str(group.count))
        for index, (what, rows) in enumerate(places.items()):
            table.row(*(head if not index else ("", "", "")), ", ".join(rows), *what)
    Console().print(table)


def _contracts(report: "ValidationReport") -> str:
    names = set(report.schemas.values())
    if len(names) == 1:
        return f"{names.pop()} rows"
    return ", ".join(f"{Path(file).name}: {name} rows" for file, name in report.schemas.items())


def _recipes_of(name: str | None, home: Home) -> "dict[str, Recipe | None]":
    """Return the recipes whose rows are checked, by stage of a chain; a recipe alone has no name of
    a stage."""
    if name is None:
        return {"": None}
    from rl_core.runs.chain.chains import is_chain, load_chain
    from rl_core.runs.recipes import load_recipe

    if not is_chain(name):
        return {"": _with_artifacts(load_recipe(name), home)}
    chain = load_chain(name)
    return {stage.name: _with_artifacts(chain.planned(stage, None), home) for stage in chain.stages}


def _with_artifacts(recipe: "Recipe", home: Home) -> "Recipe":
    from schemas.recipe import Recipe

    sets = [one.data for one in recipe.evaluation.sets.values()]
    rows = [recipe.data.train, recipe.data.eval, recipe.validation.benchmarks, *sets]
    if "art://" not in str(rows):
        return recipe
    from rl_core.tracking.artifacts import with_artifacts

    return Recipe.model_validate(with_artifacts(recipe.model_dump(mode="json"), home.mlflow_uri))


def _settings(
    recipe: "Recipe | None",
    schema: SchemaName | None,
    env_class: str | None,
    oracle_rows: str | None,
) -> "CheckSettings":
    from rl_core.data.check.parts import CheckSettings
    from rl_core.data.read.recipe_files import check_settings
    from rl_core.envs import accepted_ground_truths
    from rl_core.envs.registration import portable_options, spec
    from rl_core.envs.trials.settings import TrialSettings, source_digest
    from schemas.sections.training import ValidationConfig

    wanted = _oracle_rows(oracle_rows)
    if recipe is not None:
        settings = check_settings(recipe)
        trials = settings.trials
    else:
        chosen = SchemaName.PROMPT if schema is None and env_class is not None else schema
        settings = CheckSettings(accepted_ground_truths(), schema=chosen)
        options, default = portable_options({}), ValidationConfig()
        rows = default.oracle_rows
        trials = TrialSettings(
            options,
            default.build_timeout_s,
            None if rows == ALL else rows,
            source_digest(options),
        )
    if env_class is not None and env_class not in settings.allowed_env_classes:
        spec(env_class)
    if trials is not None and oracle_rows is not None:
        trials = replace(trials, oracle_rows=wanted)
    return replace(
        settings,
        trials=trials,
        schema=schema or settings.schema,
        default_env_class=env_class or settings.default_env_class,
    )


def _oracle_rows(text: str | None) -> int | None:
    """Return a number of rows, or None for all. Raises: RecipeError."""
    if text is None or text == ALL:
        return None
    if not (text.isascii() and text.isdigit()):
        raise RecipeError(f"--oracle-rows {text}: write a number of rows, or all")
    return int(text)


def _files_of(recipe: "Recipe | None", home: Home) -> tuple[list[Path], list[Path]]:
    if recipe is None:
        raise RecipeError("name the files to validate, or a recipe with --recipe")
    from rl_core.data.prepare.row_files import row_files

    return row_files(recipe, home)


def _compared(
    recipe: "Recipe | None",
    against: list[str] | None,
    home: Home,
    files: "SplitFiles | None",
) -> "tuple[Contamination, Sides | None]":
    """Return the settings of the comparison, and the rows that are compared if they are pairs of a
    recipe.

    Args: files: those of the recipe; None if others were named.
    """
    from rl_core.data.overlap.found import REPORTED
    from rl_core.data.prepare.row_files import compared_rows
    from rl_core.data.read.recipe_files import benchmark_files, contamination_of

    settings = REPORTED if recipe is None else contamination_of(recipe, home.data)
    more = benchmark_files(against or [], home.data)
    settings = replace(settings, benchmarks=(*settings.benchmarks, *more))
    if recipe is None or files is None or not recipe.has_pairs:
        return settings, None
    return settings, compared_rows(recipe, home, files, settings)


def _tokens(
    recipe: "Recipe | None", model: str | None, max_prompt_length: int | None, home: Home
) -> "TokenSettings | None":
    """Return how prompts are counted; None if no model is named, or it is not on this machine."""
    from rl_core.data.check.tokens import TokenSettings
    from rl_core.models.locate import locate, model_shape
    from schemas.rows.contract import SchemaName
    from schemas.sections.data import DataConfig

    if recipe is not None and recipe.domain.traits.rows is not SchemaName.PROMPT:
        return None
    path = model
    if path is None and recipe is not None:
        here = model_shape(recipe.model.path, home.models) is not None
        path = recipe.model.path if here else None
    if path is None:
        return None
    from rl_core.rollout.chat.vision import prompt_tokenizer
    from schemas.domains import ModelKind

    text_alone = recipe is not None and recipe.domain.traits.model is ModelKind.TEXT
    tokenizer = prompt_tokenizer(locate(path, home.models, merged=False), text_alone=text_alone)
    default = DataConfig.model_fields["max_prompt_length"].default
    longest = max_prompt_length or (recipe.data.max_prompt_length if recipe else default)
    options = recipe.model.chat_template_kwargs if recipe else {}
    return TokenSettings(tokenizer, longest, options, home.data / "memo" / "lengths")


def _cluster():
    from rl_core.distributed.cluster import configured_address

    if (address := configured_address()) is None:
        return None
    check_addresses(Server.RAY)
    from rl_core.distributed.ray_data.validation import cluster_runner

    return cluster_runner(address)
