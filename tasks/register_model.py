"""register-model: export, a new MLflow version, and the champion alias only when the gate holds."""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from rl_core.evaluation.gate import Incumbent, judge, score_of
from rl_core.home import Home
from rl_core.tracking.plots import curve_of, reward_curve
from rl_core.tracking.registry import CHAMPION, champion, move_alias, register_version
from rl_core.trainers.session import TrainingSession, session_for
from schemas.receipts import EvalReceipt, ModelReceipt, RunPlan
from tasks import artifacts


@task(name="register-model", cache_policy=NO_CACHE)
def register_model(plan: RunPlan, baseline: EvalReceipt, final: EvalReceipt) -> ModelReceipt:
    """Register the final weights; they become champion only if they beat the incumbent by the recipe's margin."""
    session = session_for(plan)
    done = session.folder.receipt("register-model", ModelReceipt)
    if done is not None:
        return done
    name, registration = session.recipe.registered_name, session.recipe.registration
    value = score_of(final, registration.score)
    model_dir = session.export(session.recipe.training.num_iterations)
    incumbent = _incumbent(name, baseline)
    verdict = judge(final, incumbent, registration.margin, registration.score)
    version = _register(session, name, model_dir, baseline, final)
    if verdict.promoted:
        move_alias(Home.default().mlflow_uri, name, CHAMPION, version)
    receipt = ModelReceipt(
        name=name,
        version=version,
        model_path=str(model_dir),
        accuracy=final.accuracy,
        score=registration.score,
        value=value,
        compared_with=incumbent.name,
        compared_value=incumbent.scores.get(registration.score),
        margin=registration.margin,
        promoted=verdict.promoted,
        reason=verdict.reason,
    )
    session.folder.save_receipt("register-model", receipt)
    _publish(session, receipt, [baseline, final])
    return receipt


def _incumbent(name: str, baseline: EvalReceipt) -> Incumbent:
    present = champion(Home.default().mlflow_uri, name)
    if present is None:
        return Incumbent("baseline", baseline.values(), baseline.eval_digest)
    return Incumbent(f"champion v{present.version}", present.metrics, present.tags["eval_digest"])


def _register(session: TrainingSession, name: str, model_dir: Path, baseline: EvalReceipt, final: EvalReceipt) -> int:
    plan, tracking = session.plan, session.tracking
    dataset = tracking.log_dataset(
        "held-out", f"{plan.cache.path}/eval.parquet", final.eval_digest, context="evaluation", num_rows=final.num_rows
    )
    metrics = final.values() | {f"baseline_{name}": value for name, value in baseline.values().items()}
    tags = {
        "run_key": plan.run_key,
        "cache_hash": plan.cache.run_hash,
        "eval_digest": final.eval_digest,
        "accuracy": final.accuracy,
        "checkpoint": str(session.folder.checkpoint(session.recipe.training.num_iterations)),
    }
    return register_version(tracking, name, model_dir, metrics, dataset, tags)


def _publish(session: TrainingSession, receipt: ModelReceipt, evaluations: list[EvalReceipt]) -> None:
    path = reward_curve(
        session.folder.history(),
        evaluations,
        session.folder.root / "reward-curve.png",
        curve=curve_of(session.recipe.domain),
    )
    session.tracking.log_artifact(path, "plots")
    artifacts.picture("reward-curve", path, "Learning per step and held-out accuracy")
    outcome = "moved to this version" if receipt.promoted else "stays where it was"
    artifacts.markdown(
        "model",
        f"**{receipt.name} v{receipt.version}**: champion alias {outcome}.\n\n{receipt.reason}.\n\n"
        f"Folder: `{receipt.model_path}`",
        "The registered model",
    )
