"""The flow `rl-prepare`: one preparation stage, as a deployment or from a schedule."""

from collections.abc import Sequence

from prefect import flow

from flows.killed_run import report_if_killed
from rl_core.runtime.child_reaper import no_orphans
from rl_core.runtime.home import Home
from schemas.receipts import PrepReceipt
from tasks.prefect_ui.artifacts import delivered
from tasks.prefect_ui.task_runs import recorded
from tasks.prepare_stage import prepare_stage


@flow(name="rl-prepare", flow_run_name="rl-prepare {stage}", validate_parameters=True)
def rl_prepare(
    stage: str = "vision",
    overrides: Sequence[str] = (),
    input_dir: str | None = None,
    output_dir: str | None = None,
    force: bool = False,
) -> PrepReceipt:
    """Prepare the data of one stage.

    Args:
        stage: `mpo`, `text`, `vision`, `diffusion`, or the path of a YAML file.
        overrides: Dotted assignments on top of the stage's settings, such as `on_invalid=drop`.
        input_dir: Folder of the raw files, instead of the one in the settings.
        output_dir: Folder that becomes the cache, instead of the one in the settings.
        force: Build again even if nothing changed.
    """
    Home.default().activate()
    with no_orphans(), recorded(), delivered():
        report_if_killed()
        return prepare_stage(stage, overrides, input_dir, output_dir, force)


if __name__ == "__main__":
    rl_prepare()
