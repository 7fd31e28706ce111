"""A chain of recipes in the flow `rl-train`: a sub-flow per stage, each with its own data, cache,
gate and registered version. A stage whose version did not become champion ends the chain, unless
nothing comes after it.

The stages of a cut chain that are finished give their receipts again, through their own run keys,
so that the next one starts from the same folder and goes on where it was.
"""

from typing import Any

from prefect import Flow, tags
from prefect.logging import get_run_logger

from rl_core.errors import ChainStopped
from rl_core.runs.chain.chain_table import stage_rows
from rl_core.runs.chain.chains import LoadedChain, Stage
from rl_core.runtime.child_reaper import no_orphans
from rl_core.runtime.home import Home
from rl_core.tracking.model_versions import champion
from rl_core.trainers.progress import STAGE, ProgressEvent, announce
from schemas.receipts import ChainReceipt, ModelReceipt
from tasks.prefect_ui import artifacts
from tasks.prefect_ui.flow_links import chain_tags


def run_chain(
    chain: LoadedChain, profile: str | None, fresh: bool, train: Flow[..., Any]
) -> ChainReceipt:
    """Train the stages of a chain one after the other.

    Args: fresh: start every stage over. train: the flow of one recipe.
    Raises: ChainStopped when a version was not promoted; the user's errors of a stage, with its
    name.
    """
    trained: dict[str, ModelReceipt] = {}
    with no_orphans(), artifacts.delivered():
        for number, stage in enumerate(chain.stages, start=1):
            of = f"stage {stage.name} ({number} of {len(chain.stages)})"
            get_run_logger().info(of)
            announce(ProgressEvent(STAGE, number, len(chain.stages), text=stage.name))
            trained[stage.name] = receipt = _train(chain, stage, trained, profile, fresh, train)
            artifacts.table("stages", stage_rows(chain, trained), f"Stages of {chain.name}")
            if number < len(chain.stages) and not _is_winner(receipt):
                raise ChainStopped(_reason(chain, stage, receipt, number))
    return ChainReceipt(name=chain.name, stages=trained)


def _train(
    chain: LoadedChain,
    stage: Stage,
    trained: dict[str, ModelReceipt],
    profile: str | None,
    fresh: bool,
    train: Flow[..., Any],
) -> ModelReceipt:
    from_ = None if stage.starts_from is None else trained[stage.starts_from]
    named = train.with_options(flow_run_name=f"rl-train {chain.name} {stage.name}")
    with chain.naming(stage), tags(*chain_tags(chain.name, stage.name, from_)):
        receipt = named(stage.source, stage.after(trained), profile, fresh)
    assert isinstance(receipt, ModelReceipt)  # only a retraining may find nothing to do
    return receipt


def _is_winner(receipt: ModelReceipt) -> bool:
    """Return True if the version was promoted, by its run or by a person since."""
    if receipt.promoted:
        return True
    present = champion(Home.default().mlflow_uri, receipt.name)
    return present is not None and present.version == receipt.version


def _reason(chain: LoadedChain, stage: Stage, receipt: ModelReceipt, number: int) -> str:
    later = ", ".join(one.name for one in chain.stages[number:])
    gate = receipt.gate
    what = "was not approved" if gate.passed else f"did not pass its gate (margin {gate.margin:g})"
    return (
        f"{chain.file.name}: stage {stage.name} ({stage.source}) {what}: {receipt.reason}; "
        f"{later} was not run. "
        f"To go on with {receipt.name} v{receipt.version} all the same: rl-train promote "
        f"{receipt.name} {receipt.version}, then the same command"
    )
