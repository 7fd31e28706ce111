"""The task register-model: register the exported folder as a new MLflow version with its held-out
metrics; no alias moves."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from rl_core.data.store.weights import weights_digest
from rl_core.errors import StorageError
from rl_core.runs.observing.learning import warn_of_nothing_learnt
from rl_core.runs.run_folder import ORDERS_FILE
from rl_core.runs.session import TrainingSession, session_for
from rl_core.runs.versions.best import RECEIPT, chosen_iteration
from rl_core.tracking.lineage import CHOSEN_TAG, trace
from rl_core.tracking.model_card import write_card
from rl_core.tracking.model_versions import register_version
from rl_core.tracking.plots import reward_curve
from rl_core.tracking.stored_weights import store_weights
from schemas.receipts import ChoiceReceipt, EvalReceipt, ExportReceipt, RunPlan, VersionReceipt
from tasks.prefect_ui import artifacts


@task(name="register-model", cache_policy=NO_CACHE)
def register_model(plan: RunPlan, baseline: EvalReceipt, final: EvalReceipt) -> VersionReceipt:
    """Register the exported weights as the next version; a run registers once.

    Raises: StorageError when the folder changed since it was evaluated.
    """
    session = session_for(plan)
    done = session.folder.receipt("register-model", VersionReceipt)
    if done is not None:
        return done
    iteration = chosen_iteration(session.folder, session.recipe)
    model_dir = session.export(iteration)
    _check_unchanged(session, model_dir)
    name = session.recipe.registered_name
    _log_orders(session)
    version = _register(session, name, model_dir, iteration, baseline, final)
    receipt = VersionReceipt(name=name, version=version, model_path=str(model_dir))
    write_card(model_dir, trace(session.tracking.tracking_uri, name, version), final, baseline)
    store_weights(session.tracking, model_dir)
    session.folder.save_receipt("register-model", receipt)
    warn_of_nothing_learnt(session.recipe, session.folder.history(), f"{name} v{version}")
    _publish(session)
    return receipt


def _check_unchanged(session: TrainingSession, model_dir: Path) -> None:
    written, found = (
        session.folder.receipt("export-model", ExportReceipt),
        weights_digest(model_dir),
    )
    if written is not None and written.weights_digest != found:
        raise StorageError(
            f"{model_dir}: the weights were changed after they were evaluated (digest {found}, "
            f"evaluated {written.weights_digest}); remove the folder and run again"
        )


def _register(
    session: TrainingSession,
    name: str,
    model_dir: Path,
    iteration: int,
    baseline: EvalReceipt,
    final: EvalReceipt,
) -> int:
    plan, tracking = session.plan, session.tracking
    choice = session.folder.receipt(RECEIPT, ChoiceReceipt)
    dataset = tracking.log_dataset(
        "held-out",
        f"{plan.cache.path}/eval.parquet",
        final.eval_digest,
        context="evaluation",
        num_rows=final.num_rows,
    )
    metrics = final.values() | {
        f"baseline_{name}": value for name, value in baseline.values().items()
    }
    tags = {
        "run_key": plan.run_key,
        "cache_hash": plan.cache.run_hash,
        "eval_digest": final.eval_digest,
        "accuracy": final.accuracy,
        "weights_digest": weights_digest(model_dir),
        "checkpoint": session.folder.checkpoint_address(iteration),
        "iteration": iteration,
        **({} if choice is None else {CHOSEN_TAG: choice.reason}),
        **{f"origin.{part}": digest for part, digest in plan.origin.items()},
    }
    return register_version(tracking, name, model_dir, metrics, dataset, tags)


def _log_orders(session: TrainingSession) -> None:
    """Keep the order in which weights were taken in flight, without which the version cannot be
    trained again."""
    path = session.folder.root / ORDERS_FILE
    if path.is_file():
        session.tracking.log_artifact(path)


def _publish(session: TrainingSession) -> None:
    path = reward_curve(
        session.folder.history(),
        session.folder.evaluations(),
        session.folder.root / "reward-curve.png",
        curve=session.recipe.domain.traits.curve,
    )
    session.tracking.log_artifact(path, "plots")
    artifacts.picture("reward-curve", path, "Learning per step and held-out accuracy")
