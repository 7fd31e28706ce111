"""The task evaluate: an answer to every held-out row, and to the prompts of the named sets, with
the same rows and settings each time."""

from collections.abc import Iterator
from contextlib import contextmanager

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import task_run
from prefect.tasks import exponential_backoff

from rl_core.evaluation.compared import compared_rows
from rl_core.evaluation.gate import check_scores
from rl_core.evaluation.generated_samples import before_and_after
from rl_core.evaluation.intervals import paired_change
from rl_core.evaluation.picture_sheet import picture_sheet
from rl_core.evaluation.row_scores import MEAN_REWARD, paired_scores
from rl_core.evaluation.runner import read_samples
from rl_core.rewards.samples import prompt_text
from rl_core.runs.held_out import PLAYED
from rl_core.runs.session import session_for
from rl_core.trainers.progress import ProgressEvent, announce, listeners
from schemas.receipts import EvalReceipt, Measure, RunPlan
from tasks.prefect_ui import artifacts
from tasks.prefect_ui.notes import logged_notes, task_logger
from tasks.retrying import worth_retrying

NUM_SHOWN = 20


def _run_name() -> str:
    return f"evaluate {task_run.parameters['label']}"


@task(
    name="evaluate",
    task_run_name=_run_name,
    cache_policy=NO_CACHE,
    retries=2,
    retry_delay_seconds=exponential_backoff(2),
    retry_condition_fn=worth_retrying,
)
def evaluate(
    plan: RunPlan,
    label: str,
    iteration: int,
    baseline: EvalReceipt | None = None,
    *,
    exported: bool = False,
) -> EvalReceipt:
    """Score the weights after `iteration` (0: before training), next to `baseline` when it is
    given.

    Args: exported: score the weights of the exported folder, read back.
    """
    session = session_for(plan)
    with logged_notes(), shown_progress(label):
        receipt = session.evaluate(label, iteration, exported=exported)
    announce(ProgressEvent("done", receipt=receipt))
    # Before the training rather than after it: a score that is not measured cannot choose the
    # champion.
    settings = session.recipe.registration
    if (rows := compared_rows(receipt, settings)) is not None:
        check_scores(rows, settings)
    show_scores([receipt] if baseline is None else [baseline, receipt])
    if baseline is not None:
        compare(baseline, receipt)
        _show_pictures(plan, baseline, receipt)
    return receipt


@contextmanager
def shown_progress(label: str) -> Iterator[None]:
    """Show in the UI and the log how many of the prompts are played, during the block."""
    logger = task_logger()
    progress = artifacts.Progress("evaluation-progress", f"Held-out prompts of {label}")

    def follow(event: ProgressEvent) -> None:
        if event.phase == PLAYED:
            progress.update(event.step / event.total_steps)
            logger.info("%s: %d of %d prompts", event.text, event.step, event.total_steps)

    listeners.append(follow)
    try:
        yield
    finally:
        listeners.remove(follow)


def _show_pictures(plan: RunPlan, before: EvalReceipt, after: EvalReceipt) -> None:
    session = session_for(plan)
    path = session.folder.root / "samples" / f"pictures-{after.label}.png"
    rows = read_samples(before.samples_path), read_samples(after.samples_path)
    if picture_sheet(*rows, path):
        title = "Held-out pictures, questions, and both answers"
    elif before_and_after(*rows, list(after.scores), path):
        title = "Held-out prompts, and what was made of them from the same noise before and after"
    else:
        return
    session.tracking.log_artifact(path, "samples")
    artifacts.picture("sample-pictures", path, title)


def show_scores(receipts: list[EvalReceipt]) -> None:
    """Publish the scores of evaluations, one row each, and the change from the first to the
    last."""
    graded = any(receipt.graded for receipt in receipts)
    table: list[dict[str, object]] = []
    for receipt in receipts:
        table.append(
            {
                "which": receipt.label,
                "step": receipt.step,
                **({} if graded else _accuracy(receipt)),
                "mean reward": f"{receipt.mean_reward:.3f}",
                **{
                    name.replace("_", " "): f"{value:.3f}" for name, value in receipt.scores.items()
                },
                "mean length": f"{receipt.mean_length:.1f}",
                "truncated": f"{receipt.truncated_share:.3f}",
            }
        )
    summary = f"{receipts[0].num_rows} held-out rows"
    if failed := receipts[-1].num_failed:
        summary += f", {failed} without a verdict"
    if len(receipts) > 1:
        before, after = (read_samples(one.samples_path) for one in (receipts[0], receipts[-1]))
        change, low, high = paired_change(*paired_scores(before, after, MEAN_REWARD))
        summary += f"; mean reward changed by {change:+.3f} ({low:+.3f} to {high:+.3f})"
    artifacts.table("evaluation", table, summary)
    if receipts[-1].sets:
        artifacts.table("evaluation-sets", set_rows(receipts), "Named sets, with 95 % intervals")


def _accuracy(receipt: EvalReceipt) -> dict[str, str]:
    interval = f"{receipt.ci_low:.3f} to {receipt.ci_high:.3f}"
    return {"accuracy": f"{receipt.accuracy:.3f}", "95 % interval": interval}


def set_rows(receipts: list[EvalReceipt]) -> list[dict[str, object]]:
    """Return one table row per measure of each set and source, with a column per evaluation."""
    table = []
    for name, last in receipts[-1].sets.items():
        found = [one.sets.get(name) for one in receipts]
        for source in ("", *last.sources):
            measures = []
            for one in found:
                if one is None:
                    measures.append({})
                elif source:
                    measures.append(one.sources.get(source, {}))
                else:
                    measures.append(one.measures)
            for measure in measures[-1]:
                row = {"set": name, "source": source, "measure": measure}
                for receipt, of in zip(receipts, measures, strict=True):
                    row[receipt.label] = _interval(of[measure]) if measure in of else ""
                table.append(row)
    return table


def _interval(measure: Measure) -> str:
    return f"{measure.value:.3f} ({measure.low:.3f} to {measure.high:.3f})"


def compare(before: EvalReceipt, after: EvalReceipt) -> None:
    """Publish the answers to the same questions before and after training."""
    rows_before, rows_after = read_samples(before.samples_path), read_samples(after.samples_path)
    samples = []
    for one, two in zip(rows_before[:NUM_SHOWN], rows_after[:NUM_SHOWN], strict=True):
        samples.append(
            {
                "prompt": prompt_text(one["prompt"]),
                "truth": one["ground_truth"],
                "before": one["response"],
                "reward before": one["reward"],
                "after": two["response"],
                "reward after": two["reward"],
            }
        )
    artifacts.table("samples", samples, "The same held-out questions before and after training")
