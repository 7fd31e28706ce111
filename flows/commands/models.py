"""The commands `rl-train lineage`, `promote`, `reproduce`, `eval`, `export` and `push`, which work
on registered versions."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from flows.lists.listing import Json
from rl_core.models.export.formats import ModelFormat, Numbers
from rl_core.reporting.lineage_page import LineageFormat
from rl_core.runtime.home import Home
from rl_core.services.addresses import Server, check_addresses

DIFFERENT = 1
"""Exit code if something differs from what was recorded."""
Model = Annotated[
    str,
    typer.Argument(help="models:/NAME@champion, models:/NAME/VERSION, or a name with a version"),
]
Version = Annotated[int | None, typer.Argument(help="Version number, after a name")]


def lineage(
    model: Model,
    version: Version = None,
    format: Annotated[LineageFormat, typer.Option(help="How to print it")] = LineageFormat.TEXT,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compute the digests anew; exit code 1 on a change")
    ] = False,
    as_json: Json = False,
) -> None:
    """Trace a model version back to its runs, recipe, code, cache and source files."""
    from rl_core.data.store.changes import Condition
    from rl_core.reporting.lineage_page import show_lineage
    from rl_core.tracking.lineage import trace

    check_addresses(Server.MLFLOW)
    home = Home.default()
    found = trace(home.mlflow_uri, model, version, ui=home.mlflow_ui)
    checks = list(found.checks()) if verify else None
    shown = LineageFormat.JSON if as_json else format
    typer.echo(show_lineage(found, shown, checks))
    if any(check.condition is not Condition.SAME for check in checks or ()):
        raise typer.Exit(DIFFERENT)


def promote(
    name: Annotated[str, typer.Argument(help="Registered model name")],
    version: Annotated[
        int, typer.Argument(help="Version that becomes champion; an older one is a rollback")
    ],
    reason: Annotated[str, typer.Option(help="Why, for those who ask later")] = "by hand",
) -> None:
    """Make a version the champion, and record the person, the time and the reason; automations of
    the Prefect server hear of it."""
    from tasks.prefect_ui.champion_events import make_champion

    check_addresses(Server.MLFLOW, Server.PREFECT)
    done = make_champion(Home.default().mlflow_uri, name, version, reason)
    before = f"it was v{done.over}" if done.over else "there was none"
    typer.echo(f"{name} v{version} is champion ({before}); {done.at} by {done.by}: {done.reason}")


def reproduce(
    model: Model,
    version: Version = None,
    to: Annotated[Path, typer.Option(help="New folder for recipe, script and result")] = Path(
        "reproduction"
    ),
    run: Annotated[
        bool, typer.Option("--run", help="Run it, and compare the weights; exit code 1 if other")
    ] = False,
) -> None:
    """Write the recipe and the exact command that reproduce a version's weights."""
    from rl_core.runs.versions.reproduce import write_reproduction
    from rl_core.tracking.lineage import trace

    check_addresses(Server.MLFLOW)
    home = Home.default()
    written = write_reproduction(trace(home.mlflow_uri, model, version), home.mlflow_uri, to)
    typer.echo(f"written; run: {shlex.join(['sh', str(written.script)])}")
    if not run:
        return
    code = written.run()
    differences = written.differences() if code == 0 else [f"the run ended with code {code}"]
    typer.echo("; ".join(differences) or "the weights are the same, bit for bit")
    if differences:
        raise typer.Exit(DIFFERENT)


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            help="models:/NAME@champion, models:/NAME/VERSION, RUN@ITERATION, as model.path, or "
            "http://host:port/v1"
        ),
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted assignments, e.g. seed=1")
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="Whose held-out rows; unset: that of its training")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Placement, with --recipe: cpu, one_gpu, ...")
    ] = None,
    served_model: Annotated[
        str | None, typer.Option(help="Name of the model on the server at http://host:port/v1")
    ] = None,
    lm_eval: Annotated[
        str | None,
        typer.Option(help="Tasks of lm-eval to measure instead, as in arc_easy,hellaswag"),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Rows of each task of lm-eval; unset: all")
    ] = None,
    lm_eval_folder: Annotated[
        Path | None, typer.Option(help="Folder with further tasks of lm-eval, as YAML")
    ] = None,
    lm_eval_python: Annotated[
        str | None, typer.Option(help="Python interpreter with lm-eval; unset: this one")
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show Prefect's log and tracebacks")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the scores as JSON, and nothing else")
    ] = False,
) -> None:
    """Evaluate a model on a recipe's held-out rows and named sets, without any training; or on
    tasks of lm-eval."""
    if lm_eval is not None:
        _measure_by_lm_eval(model, lm_eval, limit, lm_eval_folder, lm_eval_python)
        return
    from flows.local_run import evaluate_locally

    receipt = evaluate_locally(
        model, recipe, overrides or [], profile, served_model, debug=debug, quiet=as_json
    )
    if as_json:
        typer.echo(receipt.model_dump_json(indent=2))


def _measure_by_lm_eval(
    model: str, tasks: str, limit: int | None, folder: Path | None, python: str | None
) -> None:
    from rl_core.runs.evaluation import find_candidate
    from rl_core.runs.lm_eval import LmEval, measure
    from rl_core.runs.versions.iterations import export_iteration
    from schemas.sections.policy import ExportKind

    check_addresses(Server.MLFLOW)
    home = Home.default()
    candidate = find_candidate(model, home)
    wanted = LmEval(tasks, limit, folder, python or sys.executable)
    wanted.version()
    if candidate.iteration is not None:
        kept = candidate.iteration
        export_iteration(kept, home, kept.export, kind=ExportKind.MERGED)
    for name, value in measure(candidate, wanted, home).items():
        typer.echo(f"{name}  {value:.4f}")


def export(
    model: Annotated[
        str,
        typer.Argument(
            help="models:/NAME@champion, models:/NAME/VERSION, a name with a version, or "
            "RUN@ITERATION"
        ),
    ],
    version: Version = None,
    to: Annotated[Path, typer.Option(help="New folder for weights, card and lineage.json")] = Path(
        "exported"
    ),
    format: Annotated[
        ModelFormat | None, typer.Option(help="hf, adapter or gguf; unset: as it was registered")
    ] = None,
    numbers: Annotated[
        Numbers | None, typer.Option(help="Number format of --format gguf; unset: f16")
    ] = None,
) -> None:
    """Copy a version's weights to a new folder, after comparing them with what was registered; or
    write those of a run's iteration whose checkpoint was kept."""
    from rl_core.errors import RecipeError
    from rl_core.models.model_path import is_model
    from rl_core.runs.versions.exporting import export_as

    if numbers is not None and format is not ModelFormat.GGUF:
        raise RecipeError(f"--numbers {numbers} goes with --format gguf")
    check_addresses(Server.MLFLOW)
    written = export_as(model, version, Home.default(), to, format, numbers or Numbers.F16)
    if format is ModelFormat.GGUF:
        typer.echo(f"written to {written}; llama.cpp and what is built on it load model.gguf")
    elif is_model(written):
        typer.echo(f"written to {written}; model.path={written} trains on from there")
    else:
        typer.echo(
            f"written to {written}: adapters alone, which transformers and diffusers load over "
            f"their base; those of a language model train on with model.path={written}"
        )


def push(
    model: Annotated[
        str, typer.Argument(help="models:/NAME@champion, models:/NAME/VERSION, or RUN@ITERATION")
    ],
    repository: Annotated[str, typer.Argument(help="ORGANISATION/NAME on the Hugging Face Hub")],
    private: Annotated[
        bool, typer.Option("--private", help="Create the repository as a private one")
    ] = False,
    revision: Annotated[str | None, typer.Option(help="Branch; unset: main")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace what is no version of this model there")
    ] = False,
) -> None:
    """Upload a model with its card and lineage to the Hugging Face Hub, as one commit.

    The token is that of HF_TOKEN or of `hf auth login`.
    """
    from rl_core.runs.versions.pushing import push as push_to

    check_addresses(Server.MLFLOW)
    done = push_to(
        model,
        None,
        repository,
        Home.default(),
        private=private,
        revision=revision,
        overwrite=overwrite,
    )
    typer.echo(f"pushed: {done.url}" if done.is_new else f"{repository} has all of it: {done.url}")
