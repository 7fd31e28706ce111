"""The commands `rl-train prep` and `rl-train data make-fixture`."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_core.runtime.home import Home
from rl_core.services.addresses import Server, check_addresses

if TYPE_CHECKING:
    from rl_core.data.stages.base import Context, Stage
    from schemas.receipts import PrepReceipt

MOST_MADE_UP = 100_000
"""Rows of a fixture, which is to try a stage on."""
_MIB = 2**20


def prep(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted assignments, e.g. on_invalid=drop")
    ] = None,
    config: Annotated[
        str, typer.Option("-c", "--config", help="mpo, text, vision, diffusion, or a .yaml path")
    ] = "",
    input_dir: Annotated[Path | None, typer.Option(help="Folder of the raw files")] = None,
    output_dir: Annotated[Path | None, typer.Option(help="Folder that becomes the cache")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say hit or miss and why; build nothing")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Build again even when nothing changed")
    ] = False,
    register: Annotated[
        bool, typer.Option(help="Record the result in MLflow as an artifact")
    ] = True,
) -> None:
    """Prepare the data of a stage into a cache, which is published completely or not at all."""
    from rl_core.data.stages.run import load_stage, prepare_stage, stage_names
    from rl_core.errors import RecipeError

    if not config:
        raise RecipeError(f"name a stage: rl-train prep -c {'|'.join(stage_names())}")
    stage, home = (
        load_stage(config, overrides or [], input_dir=input_dir, output_dir=output_dir),
        Home.default(),
    )
    if dry_run:
        _print_plan(stage, home)
        return
    if register:
        check_addresses(Server.MLFLOW)
    with _Display() as display:
        receipt = prepare_stage(
            stage, context=_context(stage, display), force=force, note=display.note, home=home
        )
    _print_receipt(receipt)
    if register:
        _register(receipt, home)


def make_fixture(
    folder: Annotated[Path, typer.Argument(help="A new folder")],
    rows: Annotated[int, typer.Option(help="Rows of each dataset", max=MOST_MADE_UP)] = 24,
    seed: Annotated[int, typer.Option(help="The same seed gives the same bytes")] = 0,
) -> None:
    """Generate small inputs in the format of each upstream dataset, to try every stage without a
    download."""
    from rl_core.builtin.data import make_fixture as maker

    for name, raw in maker.make_fixture(folder, num_rows=rows, seed=seed).items():
        prepared = str(raw.parent / "prepared")
        typer.echo(
            shlex.join(
                ["rl-train", "prep", "-c", name, "--input-dir", str(raw), "--output-dir", prepared]
            )
        )


class _Display:
    """A progress bar on a terminal; elsewhere a line per phase."""

    def __init__(self) -> None:
        from flows.console import Console

        self._console = Console(stderr=True)
        self._bar: Any = None  # of rich, which `flows.console` alone imports
        self._tasks: dict[str, object] = {}

    def __enter__(self) -> "_Display":
        if self._console.is_terminal:
            self._bar = self._console.progress()
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def note(self, text: str) -> None:
        self._console.say(text)

    def progress(self, phase: str, done: int, total: int) -> None:
        if phase not in self._tasks:
            if self._bar is not None:
                self._tasks[phase] = self._bar.add_task(phase, total=total)
            else:
                self._tasks[phase] = None
            if self._bar is None and total:
                self.note(f"{phase}: {total}")
        if self._bar is not None:
            self._bar.update(self._tasks[phase], completed=done)


def _context(stage: "Stage[Any]", display: _Display) -> "Context":
    import os

    from rl_core.data.stages.base import Context

    named = (
        stage.config.ray_address
        or os.environ.get("RL_TRAIN_RAY_ADDRESS")
        or os.environ.get("RAY_ADDRESS")
    )
    if not named:
        return Context(progress=display.progress)
    from rl_core.distributed.cluster import configured_address
    from rl_core.distributed.ray_data.jobs import cluster_runner

    address = configured_address(stage.config.ray_address)
    assert address is not None
    check_addresses(Server.RAY, ray_address=stage.config.ray_address)
    return Context(progress=display.progress, run=cluster_runner(address))


def _print_plan(stage: "Stage[Any]", home: Home) -> None:
    import yaml

    from rl_core.data.stages.run import plan_stage

    plan = plan_stage(stage, home)
    typer.echo(yaml.safe_dump(dict(plan.settings), sort_keys=False, allow_unicode=True).rstrip())
    typer.echo(f"output    {plan.output}")
    typer.echo(f"artifact  art://{plan.artifact} -> {plan.artifact_path}")
    for source in plan.sources[:20]:
        typer.echo(
            f"input     {source.path}  {source.num_bytes / _MIB:.2f} MiB  sha256 "
            f"{source.sha256[:12]}"
        )
    if len(plan.sources) > 20:
        total = sum(source.num_bytes for source in plan.sources)
        typer.echo(f"input     {len(plan.sources)} files in all, {total / _MIB:.2f} MiB")
    typer.echo(f"run hash  {plan.run_hash or 'unknown until the raw files are there'}")
    typer.echo(f"{'hit' if plan.hit else 'miss'}: {plan.explanation}")


def _print_receipt(receipt: "PrepReceipt") -> None:
    state = "hit" if receipt.hit else "built"
    typer.echo(f"{receipt.name} {state}: {receipt.explanation}")
    typer.echo(
        "rows      " + ", ".join(f"{reason} {count}" for reason, count in receipt.row_stats.items())
    )
    typer.echo(
        f"output    {receipt.output}  {receipt.num_files} files, run hash {receipt.run_hash[:12]}"
    )


def _register(receipt: "PrepReceipt", home: Home) -> None:
    """Record the result; a hit that this database already has needs no MLflow, which takes seconds
    to import."""
    from rl_core.data.stages.registered import is_registered, remember

    if receipt.hit and is_registered(receipt, home.mlflow_uri):
        return
    from rl_core.tracking.artifacts import register_prepared

    found = register_prepared(home.mlflow_uri, receipt, artifact_location=home.artifact_location)
    remember(receipt, home.mlflow_uri)
    typer.echo(f"artifact  art://{found.name}@v{found.version}")
    sys.stdout.flush()
