"""The flow `rl-sweep`: one recipe with several settings, a flow run each, and a page that compares
them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prefect import flow
from prefect.artifacts import create_link_artifact, create_table_artifact
from prefect.logging import get_run_logger

from flows.rl_train import rl_train
from flows.sweep.grid import combinations, varied
from rl_core.data.store.atomic import atomic_write_text
from rl_core.errors import SweepFailed, UserError
from rl_core.reporting.compare import compare_page, compare_runs
from rl_core.reporting.run_record import RunRecord
from rl_core.runs.recipes import load_recipe
from rl_core.runs.run_folder import RunFolder
from rl_core.runtime.home import Home
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.receipts import ModelReceipt


@flow(name="rl-sweep", flow_run_name="rl-sweep {recipe}", validate_parameters=True)
def rl_sweep(
    recipe: str = "text",
    assignments: Sequence[str] = ("seed=0,1",),
    profile: str | None = None,
) -> str:
    """Train a recipe once for each combination of settings, and compare the runs.

    The models are registered under the recipe's name with `-sweep` behind it, so that no champion
    of the recipe itself is replaced. Finished runs are kept: the same sweep continues.

    Args:
        recipe: A shipped recipe's name, or the path of a YAML file on the worker.
        assignments: Settings with their values, such as `algorithm.name=grpo,rloo` and `seed=1,2`.
        profile: Profile of the machine; unset takes the recipe's own.

    Returns: path of the page. Raises: SweepFailed, once the other runs have ended and the page is
    written, when a run ended in an error.
    """
    home = Home.default()
    home.activate()
    runs = combinations(assignments)
    name = f"name={load_recipe(recipe, runs[0], profile).name}-sweep"
    for run in runs:
        load_recipe(recipe, [name, *run], profile)
    records: list[RunRecord] = []
    shown: list[dict[str, str]] = []
    failed: list[str] = []
    for number, (run, label) in enumerate(zip(runs, varied(runs), strict=True), 1):
        announce(ProgressEvent("note", text=f"run {number} of {len(runs)}: {label}"))
        entry = {"run": label, "before": "", "after": "", "change from the first": "", "folder": ""}
        shown.append(entry)
        try:
            receipt = rl_train(recipe, [name, *run], profile)
        except UserError as error:  # the other runs are still worth their time
            get_run_logger().error(f"{label}: {error}")
            announce(ProgressEvent("note", text=f"{label}: {error}"))
            entry["after"] = f"failed: {error}"
            failed.append(f"{label}: {error}")
            continue
        assert isinstance(receipt, ModelReceipt)
        records.append(RunRecord(RunFolder(Path(receipt.model_path).parent)))
        entry["folder"] = records[-1].name
    if not records:
        raise SweepFailed("no run of the sweep ended well; " + "; ".join(failed))
    finished = [entry for entry in shown if entry["folder"]]
    for entry, compared in zip(finished, compare_runs(records), strict=True):
        before, after, change = compared.before, compared.after, compared.change
        entry["before"] = f"{compared.record.value(before):.3f}" if before else ""
        entry["after"] = f"{compared.record.value(after):.3f}" if after else ""
        if change is not None:
            interval = f"({change.low:+.3f} to {change.high:+.3f})"
            entry["change from the first"] = f"{change.mean:+.3f} {interval}"
    page = home.root / "sweeps" / f"{records[0].name}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(page, compare_page(records))
    create_table_artifact(table=shown, key="sweep", description="Runs of the sweep")
    create_link_artifact(link=page.as_uri(), link_text=str(page), key="sweep-page")
    if failed:
        said = "; ".join(failed)
        raise SweepFailed(
            f"{len(failed)} of {len(runs)} runs failed, {said}; {page} compares the others"
        )
    return str(page)
