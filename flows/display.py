"""Display of a run in the terminal: a live line per phase, a line per step, and a summary at the
end."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from flows.console import Console
from flows.summary import accuracy_table, score_table, sets_table
from rl_core.runs.held_out import HELD_OUT, PLAYED
from rl_core.runs.observing.learning import what_taught_nothing
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.teacher_score import TEACHER, share_of_gain
from rl_core.runs.versions.best import RECEIPT
from rl_core.runtime.home import Home
from rl_core.trainers.progress import ProgressEvent, listeners
from schemas.receipts import (
    CacheReceipt,
    ChoiceReceipt,
    EvalReceipt,
    IterationReceipt,
    ModelReceipt,
    SetReceipt,
    ValidationReport,
)
from schemas.recipe import Recipe

BETWEEN_STEPS = ("start workers", "evaluate", "save", "export")
"""Phases outside the training steps."""


class Display:
    """Live display that receives the run's events while its `with` block lasts."""

    def __init__(self, recipe: Recipe) -> None:
        self.console = Console()
        self._errors = Console(stderr=True)
        self._status = self.console.spinner()
        self._steps: list[Mapping[str, float]] = []
        """Metrics of the steps of the current iteration."""
        self.turn_to(recipe)
        self._start = time.perf_counter()

    def turn_to(self, recipe: Recipe) -> None:
        """Show from now on the events of a run of this recipe."""
        self.recipe = recipe
        self._scored = recipe.domain.traits.curve.scored
        self._noted = ""
        self._steps.clear()

    def __enter__(self) -> Display:
        listeners.append(self._follow)
        self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        listeners.remove(self._follow)
        self._status.stop()

    def note(self, text: str) -> None:
        """Show what the run is doing now; a repetition, as between the parts of an evaluation, is
        not said again."""
        if self._noted == text or self._noted.startswith(f"{text} "):
            return
        self._noted = text
        if self.console.is_terminal:
            self._status.tell(f"{text} …")
        else:
            self.console.say(f"{self._clock()}  {text}")

    def _follow(self, event: ProgressEvent) -> None:
        if event.receipt is not None:
            self._noted = ""
            self.console.say(f"{self._clock()}  {describe(event.receipt, scored=self._scored)}")
            if isinstance(event.receipt, IterationReceipt):
                self._warn_of(event.receipt)
        elif event.phase == "step":
            self._steps.append(event.metrics)
            self.console.say(f"{self._clock()}  {describe_step(event)}")
        elif event.phase == "note":
            said = f"{self._clock()}  {event.text}"
            self.console.say(said) if event.alarm is None else self._warn(said)
        elif event.phase == PLAYED:
            if event.step < event.total_steps or event.text != HELD_OUT:
                self.note(f"evaluate {event.text}: {event.step} of {event.total_steps} prompts")
        elif event.phase in BETWEEN_STEPS:
            self.note(event.phase)
        elif self.console.is_terminal:
            self.note(f"{event.phase} (step {event.step}/{event.total_steps})")

    def _warn_of(self, iteration: IterationReceipt) -> None:
        """Warn if no step of an iteration changed the policy."""
        for said in what_taught_nothing(self.recipe, self._steps):
            self._warn(f"{self._clock()}  train-iteration {iteration.iteration}: {said}")
        self._steps.clear()

    def _warn(self, text: str) -> None:
        """Print a warning, which a quiet display says on the error stream."""
        (self._errors if self.console.quiet else self.console).say(text)

    def _clock(self) -> str:
        minutes, seconds = divmod(int(time.perf_counter() - self._start), 60)
        return f"{minutes:3d}:{seconds:02d}"

    def summary(self, receipt: ModelReceipt) -> None:
        """Print the table at the end: before, after, the change with its interval, and the paths of
        all results."""
        folder = RunFolder(Path(receipt.model_path).parent)
        before, after = (
            folder.receipt("evaluate-baseline", EvalReceipt),
            folder.receipt("evaluate-final", EvalReceipt),
        )
        assert before is not None and after is not None
        title = f"{self.recipe.name}: {after.num_rows} held-out rows"
        graded = self._scored or before.graded or after.graded
        teacher = folder.receipt(f"evaluate-{TEACHER}", EvalReceipt)
        table = (score_table if graded else accuracy_table)(title, before, after, teacher)
        self.console.print(table)
        if after.sets:
            self.console.print(sets_table(f"{self.recipe.name}: named sets", [before, after]))
        if teacher is not None:
            scores = [
                one.mean_reward if graded else one.accuracy for one in (before, teacher, after)
            ]
            self._tell(teacher=share_of_gain(*scores) or "no better than the model before training")
        if choice := folder.receipt(RECEIPT, ChoiceReceipt):
            self._tell(chosen=str(choice))
        for said in what_taught_nothing(self.recipe, folder.history()):
            self._warn(f"warning  {said}")
        self._tell(
            model=f"{receipt.name} v{receipt.version}, {receipt.reason}",
            weights=receipt.model_path,
            curve=str(folder.root / "reward-curve.png"),
            MLflow=f"mlflow ui --backend-store-uri {shlex.quote(Home.default().mlflow_uri)}",
            Prefect="rl-train up",
        )

    def evaluation(self, name: str, receipt: EvalReceipt, recorded: float | None) -> None:
        """Print the result of one evaluation.

        Args: recorded: accuracy at registration, if on the same rows.
        """
        own = {"mean_reward": receipt.mean_reward, **receipt.scores}
        shown = own if receipt.graded else {"accuracy": receipt.accuracy} | own
        measured = ", ".join(
            f"{score.replace('_', ' ')} {value:.3f}" for score, value in shown.items()
        )
        interval = f"{receipt.ci_low:.3f} to {receipt.ci_high:.3f}"
        judged = "" if receipt.graded else f"; 95 % interval of the accuracy {interval}"
        if receipt.sets:
            self.console.print(sets_table("named sets", [receipt]))
        self._tell(
            model=name,
            measured=f"{measured} on {receipt.num_rows} held-out rows{judged}",
            recorded="nothing of these rows"
            if recorded is None
            else f"accuracy {recorded:.3f} on the same rows",
            samples=receipt.samples_path,
        )

    def _tell(self, **values: str) -> None:
        for name, value in values.items():
            self.console.say(f"{name:8} {value}")


def describe(receipt: object, *, scored: bool = False) -> str:
    """Describe a finished task in one line.

    Args: scored: held-out rows have graded scores instead of being right or wrong.
    """
    if isinstance(receipt, ValidationReport):
        state = "cached" if receipt.cached else "done"
        return (
            f"validate-data {state}: {receipt.num_accepted} of {receipt.num_rows} rows accepted; "
            f"{receipt.explanation}{_doubts(receipt)}"
        )
    if isinstance(receipt, CacheReceipt):
        state = "cached" if receipt.hit else "built"
        rows = f"{receipt.num_train_rows} training and {receipt.num_eval_rows} held-out rows"
        return f"prepare-cache {state}: {rows}; {receipt.explanation}"
    if isinstance(receipt, EvalReceipt):
        again = " (from an earlier run)" if receipt.skipped else ""
        interval = f"{receipt.ci_low:.3f} to {receipt.ci_high:.3f}"
        if scored or receipt.graded:
            judged = f"reward {receipt.mean_reward:.3f}"
        else:
            judged = f"accuracy {receipt.accuracy:.3f} ({interval})"
        scores = "".join(f", {name} {value:.3f}" for name, value in receipt.scores.items())
        scores += "".join(f"; {name} {_first(one)}" for name, one in receipt.sets.items())
        if receipt.num_failed:
            scores += f"; {receipt.num_failed} rows without a verdict"
        return f"evaluate {receipt.label}: {judged}{scores}{again}"
    if isinstance(receipt, IterationReceipt):
        if receipt.skipped:
            state = "was complete already, skipped"
        else:
            state = "complete, checkpoint written"
        return f"train-iteration {receipt.iteration}: {state}"
    return str(receipt)


def _first(measured: SetReceipt) -> str:
    """Describe the first measure of a set: passes where they are known, else the reward."""
    name = next((one for one in measured.measures if one.startswith(("avg@", "accuracy"))), None)
    name = name or "mean_reward"
    found = measured.measures[name]
    return f"{name.replace('_', ' ')} {found.value:.3f} ({found.low:.3f} to {found.high:.3f})"


def _doubts(report: ValidationReport) -> str:
    """Return a line for each kind of rows that are good but doubtful."""
    doubts = "".join(
        f"\n        {group.count} rows, first {group.first[0].file}:{group.first[0].row}: "
        f"{group.reason}; {group.first[0].expected}"
        for group in report.warnings
    )
    if report.contamination is None:
        return doubts
    return doubts + "".join(
        f"\n        {pair.count} training rows repeat "
        f"{'benchmark' if pair.benchmark else 'held-out'} rows ({report.contamination.policy}), "
        f"first {pair.first[0]}"
        for pair in report.contamination.pairs
    )


def describe_step(event: ProgressEvent) -> str:
    """Describe a step in one line."""
    m = event.metrics
    if "reward_margin" in m:
        return (
            f"step {event.step:>3}/{event.total_steps}  loss {m['loss']:.3f}  told apart "
            f"{m['reward_accuracy']:.2f}  margin {m['reward_margin']:+.3f}  grad "
            f"{m['grad_norm']:.2f}  train {m['seconds/train']:.1f} s"
        )
    tracks = []
    for key in m:
        if f"/{key}".endswith("/reward_mean"):
            tracks.append(key.removesuffix("reward_mean"))
    said = "".join(_describe_track(m, prefix) for prefix in tracks)
    return (
        f"step {event.step:>3}/{event.total_steps}  {said}"
        f"rollout {m['seconds/rollout']:.1f} s  train {m['seconds/train']:.1f} s"
    )


def _describe_track(metrics: Mapping[str, float], prefix: str) -> str:
    """Describe the reward and the learning metrics of one track; a track that is only sampled has
    no gradient.

    Args: prefix: prefix of the track's metrics.
    """
    own = {}
    for key, value in metrics.items():
        if key.startswith(prefix):
            own[key.removeprefix(prefix)] = value
    said = f"{prefix}reward {own['reward_mean']:.3f} ± {own['reward_std']:.2f}  "
    for name, form in (
        ("response_length_mean", "length {:.1f}  "),
        ("approx_kl", "kl {:.4f}  "),
        ("grad_norm", "grad {:.2f}  "),
    ):
        said += form.format(own[name]) if name in own else ""
    return said
