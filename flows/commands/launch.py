"""The commands `rl-train launch slurm`, `k8s` and `skypilot`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rl_core.data.store.atomic import atomic_write_text

if TYPE_CHECKING:
    from flows.launch.job import Job

launch = typer.Typer(
    help="Write what a scheduler of machines takes for a run; nothing is submitted.",
    no_args_is_help=True,
)

Recipe = Annotated[str, typer.Argument(help="Name of a shipped recipe, or a .yaml path")]
Overrides = Annotated[
    list[str] | None, typer.Argument(help="Dotted assignments, e.g. training.num_iterations=8")
]
Nodes = Annotated[int, typer.Option(min=1, max=100_000, help="Machines")]
Devices = Annotated[int, typer.Option(min=1, max=1024, help="Devices of each machine")]
Cpu = Annotated[bool, typer.Option("--cpu", help="Train on processors, one device per core")]
Storage = Annotated[
    str | None, typer.Option(help="placement.storage: s3://, gs:// or a folder that all share")
]
Out = Annotated[str | None, typer.Option(help="File to write; unset prints")]


@launch.command()
def slurm(
    recipe: Recipe,
    overrides: Overrides = None,
    nodes: Nodes = 1,
    devices: Devices = 8,
    cpu: Cpu = False,
    storage: Storage = None,
    out: Out = None,
) -> None:
    """Write a batch script: Ray on every machine of the allocation, the run on the first."""
    from flows.launch.slurm import script

    _write(script(_job(recipe, overrides, nodes, devices, cpu, storage)), out)


@launch.command()
def k8s(
    recipe: Recipe,
    overrides: Overrides = None,
    nodes: Nodes = 1,
    devices: Devices = 8,
    cpu: Cpu = False,
    storage: Storage = None,
    image: Annotated[str, typer.Option(help="Image of deployments/Dockerfile")] = "rl-train",
    namespace: Annotated[str, typer.Option(help="Namespace of the job")] = "rl-train",
    mlflow: Annotated[
        str | None, typer.Option(help="MLFLOW_TRACKING_URI of the run, such as http://mlflow:5000")
    ] = None,
    out: Out = None,
) -> None:
    """Write a RayJob for KubeRay, whose Ray cluster lives as long as the run; what is to stay goes
    to --storage and --mlflow."""
    from flows.launch.kubernetes import manifest

    job = _job(recipe, overrides, nodes, devices, cpu, storage)
    text = manifest(job, image, namespace, mlflow)
    if mlflow is None:
        typer.echo(
            "note: without --mlflow the run's metrics and its registered version are on the head's "
            "own disk and go with it, unless the image sets MLFLOW_TRACKING_URI; checkpoints and "
            "exported weights stay in --storage",
            err=True,
        )
    _write(text, out)


@launch.command()
def skypilot(
    recipe: Recipe,
    overrides: Overrides = None,
    nodes: Nodes = 1,
    devices: Devices = 8,
    cpu: Cpu = False,
    storage: Storage = None,
    accelerator: Annotated[str, typer.Option(help="GPU, as SkyPilot calls it")] = "H100",
    out: Out = None,
) -> None:
    """Write a task for `sky launch`, in the project's folder."""
    from flows.launch.skypilot import task

    _write(task(_job(recipe, overrides, nodes, devices, cpu, storage), accelerator), out)


def _job(
    recipe: str,
    overrides: list[str] | None,
    nodes: int,
    devices: int,
    cpu: bool,
    storage: str | None,
) -> Job:
    """Return the job, once its recipe loads as it will there.

    Raises: RecipeError for a recipe that would be refused; StorageError for its storage.
    """
    from flows.launch.job import Job
    from rl_core.errors import RecipeError
    from rl_core.runs.chain.chains import is_chain
    from rl_core.runs.recipes import load_recipe
    from rl_core.runtime.storage import parse_storage

    if is_chain(recipe):
        raise RecipeError(f"{recipe}: a chain has several runs; launch each of its stages")
    # What is wrong with it whatever the machines.
    own = load_recipe(recipe, overrides or ()).placement.storage
    if storage is not None:
        parse_storage(storage, "--storage")
    elif own is not None:
        storage = own
    if nodes > 1 and storage is None:
        typer.echo(
            "note: without --storage every machine must see the home folder (RL_TRAIN_HOME) at the "
            "same path",
            err=True,
        )
    kind = "cpu" if cpu else "cuda"
    job = Job(recipe, tuple(overrides or ()), nodes, devices, kind, storage)
    placed = [f"placement.device={kind}", f"placement.num_devices={nodes * devices}"]
    load_recipe(recipe, [*placed, f"placement.devices_per_node={devices}", *job.overrides])
    return job


def _write(text: str, out: str | None) -> None:
    if out is None:
        typer.echo(text, nl=False)
        return
    atomic_write_text(out, text)
    typer.echo(f"wrote {out}", err=True)
