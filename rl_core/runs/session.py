"""The workers of a run, kept between tasks and rebuilt from the last complete checkpoint when they
die."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rl_core.data.order.pair_rows import PairRows
from rl_core.data.prepare.items import Item
from rl_core.data.prepare.prompts import load_prepared
from rl_core.data.store.atomic import sync_tree
from rl_core.distributed.nodes.preflight import needing
from rl_core.errors import StoppedByWatcher, StorageError
from rl_core.evaluation.generated_samples import save_made
from rl_core.evaluation.rows import PlayedRow
from rl_core.evaluation.runner import played_rows
from rl_core.models.family import check_located
from rl_core.models.locate import locate_start, making_notes
from rl_core.models.model_path import is_model
from rl_core.parts import trainers
from rl_core.runs.checkpoints.pending import PendingCheckpoint
from rl_core.runs.cluster_start import cluster_of, needs_of, with_devices_there
from rl_core.runs.held_out import Play, measure, sets_due
from rl_core.runs.observing.gauges import served_gauges
from rl_core.runs.observing.learning import warn_of_nothing_learnt
from rl_core.runs.observing.means import means_of_steps
from rl_core.runs.observing.no_signal import SignalWatch
from rl_core.runs.observing.profiling import profiled
from rl_core.runs.observing.trackers import copy_to_trackers
from rl_core.runs.observing.watching import RunWatch
from rl_core.runs.rollouts.orders import follow_orders
from rl_core.runs.rollouts.recorder import RolloutRecorder
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.run_plan import is_registered, measuring, reopen_tracking
from rl_core.runs.teacher_score import TEACHER, as_teacher
from rl_core.runs.versions.best import worth_keeping
from rl_core.runs.versions.scorer_models import with_folders
from rl_core.runtime.home import Home
from rl_core.runtime.registry import import_target
from rl_core.tracking.evaluations import log_evaluation
from rl_core.tracking.run import RunStatus, TrackingRun
from rl_core.trainers.base import Trainer
from rl_core.trainers.metrics.source_shares import SourceShares
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.receipts import EvalReceipt, IterationReceipt, RunPlan
from schemas.recipe import Recipe
from schemas.sections.evaluation_sets import SampledReplies
from schemas.sections.sampling import EvaluationSampling
from schemas.sections.tracks import IMAGES_FOLDER

OTHER = -1
"""In place of an iteration: the weights of the exported folder, or of the teacher."""


class TrainingSession:
    """Runs the iterations and evaluations of one run; everything it finishes is on disk before it
    returns."""

    def __init__(
        self, plan: RunPlan, *, metric_prefix: str = "eval", tracking: TrackingRun | None = None
    ) -> None:
        """Create the session; workers start on first use.

        Args: metric_prefix: prefix of the metrics that evaluations log. tracking: the MLflow run if
        it is open; unset opens it on first use.
        """
        self.plan = plan
        self._metric_prefix = metric_prefix
        self.recipe = Recipe.model_validate(plan.recipe)
        self.folder = RunFolder(Path(plan.run_dir))
        self.home = Home.default()
        self.started_workers = False
        """True if there was anything left to do."""
        self._trainer: Trainer | None = None
        self._iteration = 0
        self._checked = False
        self._intact: set[int] = set()
        self._tracking = tracking
        self._cluster = ExitStack()
        self._opened: dict[str, Sequence[Item]] = {}
        self._checkpoint = PendingCheckpoint.of(self.folder, self.recipe)
        self._watch: RunWatch | None = None
        self._shares: SourceShares | None = None

    @property
    def tracking(self) -> TrackingRun:
        """The MLflow run."""
        if self._tracking is None:
            self._tracking = reopen_tracking(self.plan, self.home)
            copy_to_trackers(self._tracking, self.recipe, self.folder)
        return self._tracking

    def train_iteration(self, iteration: int) -> IterationReceipt:
        """Train `steps_per_iteration` steps and write a complete checkpoint; finished iterations
        are skipped.

        After any error the workers are gone; a retry goes on from the last complete checkpoint.
        """
        self._set_damaged_aside()
        done = self.folder.receipt(f"iteration-{iteration:04d}", IterationReceipt)
        if done is not None and self.folder.last_complete() >= iteration:
            return done.model_copy(update={"skipped": True})
        if max(self.folder.last_complete(), self._checkpoint.iteration) < iteration - 1:
            # Its checkpoint was still being written when the workers ended.
            self.train_iteration(iteration - 1)
        recorder = RolloutRecorder(self.recipe, self.folder, self.tracking)
        try:
            trainer = self._trainer_at(iteration - 1)
            steps = self._train_steps(trainer, recorder)
            receipt = self._finish_iteration(trainer, iteration, steps, recorder)
        except BaseException:
            recorder.settle()
            self._checkpoint.abandon()
            self._drop_workers()
            self._watch = None
            raise
        self.tracking.check()
        return receipt

    def _train_steps(self, trainer: Trainer, recorder: RolloutRecorder) -> list[dict[str, float]]:
        """Run the steps of an iteration, and have them recorded, logged and watched. Returns: the
        metrics of each."""
        steps: list[dict[str, float]] = []
        signal = SignalWatch(self.recipe, self.folder)
        watch = self._watchers()
        self._shares = shares = self._shares or SourceShares(self.folder.history())
        last = self.recipe.training.steps_per_iteration - 1
        for number in range(last + 1):
            with profiled(self.recipe, self.folder, self.tracking, trainer):
                metrics, rollout = trainer.step()
            record = getattr(trainer, "record", None)
            metrics |= shares(record)
            if number == last:
                # It only grows, and to ask takes some milliseconds.
                metrics["peak_memory_gb"] = trainer.peak_memory() / 1e9
            steps.append({"step": float(trainer.step_count), **metrics})
            recorder.put(record)
            self._checkpoint.settle()
            signal.observe(steps[-1], rollout)
            self.tracking.log_metrics(metrics, trainer.step_count)
            for alarm in watch.observe(steps[-1], record):
                self.tracking.tag_later({f"watch.{alarm.key}": str(alarm)})
        return steps

    def check_watchers(self) -> None:
        """Check that no watcher fired that is set to stop the run; one that registered its model is
        done.

        Raises: StoppedByWatcher saying which, and how to go on.
        """
        if not is_registered(self.folder):
            self._watchers().check()

    def _watchers(self) -> RunWatch:
        if self._watch is None:
            self._watch = RunWatch(self.recipe, self.folder)
        return self._watch

    def evaluate(self, label: str, iteration: int, *, exported: bool = False) -> EvalReceipt:
        """Score the held-out rows with the weights after `iteration` (0: before training), or with
        the teacher's where `label` is `TEACHER`.

        Args: exported: evaluate the exported folder, in workers that load it like any other model,
        so that the judged weights are the registered ones. A folder of adapters alone holds the
        live weights in the same format, and no worker can load it: then the live weights are
        evaluated.
        """
        done = self.folder.receipt(f"evaluate-{label}", EvalReceipt)
        if done is not None:
            return done.model_copy(update={"skipped": True})
        items = self._rows("eval")
        self._checkpoint.settle(wait=True)
        try:
            if exported and _can_be_loaded(self.export(iteration)):
                items = self._with_reference(items, iteration)
                trainer = self._trainer_of_export()
                step = int(self.folder.trainer_state(iteration)["step"])
            elif label == TEACHER:
                trainer, step = self._trainer_of_teacher(), 0
            else:
                trainer = self._trainer_at(iteration)
                step = trainer.step_count
            sets = {name: self._set_rows(name) for name in sets_due(self.recipe, label)}
            made = self.folder.root / "samples" / f"made-{label}"
            receipt = measure(
                self._player(trainer, made),
                self.recipe,
                items,
                sets,
                label=label,
                step=step,
                samples=made.parent,
                scores=trainer.held_out_scores,
            )
        except BaseException:
            self._drop_workers()
            raise
        self.folder.save_receipt(f"evaluate-{label}", receipt)
        prefix = TEACHER if label == TEACHER else self._metric_prefix
        log_evaluation(self.tracking, receipt, prefix)
        if made.is_dir():
            self.tracking.log_artifact(made, f"samples/made-{label}")
        self.tracking.check()
        return receipt

    def _player(self, trainer: Trainer, made: Path) -> Play:
        """Return a function that plays prompts with a trainer; the first samples become files in
        `made`."""
        fps, scores = self.recipe.diffusion.video_fps, trainer.held_out_scores
        kept: list[bool] = []

        def play(
            items: Sequence[Item], max_new_tokens: int, choice: EvaluationSampling | None
        ) -> list[PlayedRow]:
            # A trainer of the user's may know the recipe's own choice alone.
            chosen = () if choice is None else (choice,)
            played = trainer.evaluate(items, max_new_tokens, *chosen)
            num = choice.samples if isinstance(choice, SampledReplies) else 1
            of_rows = [item for item in items for _ in range(num)]
            files = save_made(played, made, fps) if not kept else []
            kept.append(True)
            return played_rows(played, of_rows, scores=scores, made=files)

        return play

    def export(self, iteration: int) -> Path:
        """Write the trained model as a Hugging Face folder, once, and return it.

        Raises: ExportMismatch when it computes other results than the trained policy.
        """
        return self.export_to(iteration, self.folder.export)

    def export_to(
        self, iteration: int, target: Path, describe: Callable[[Path], None] | None = None
    ) -> Path:
        """Write the weights after `iteration` as `export` does, into a folder of their own.

        Args: describe: adds files about the weights to the folder before it is published.
        """
        if not target.is_dir():
            building = target.with_name(f".build-{target.name}")
            building.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(building, ignore_errors=True)
            try:
                self._write_export(self._trainer_at(iteration), building)
            except BaseException:
                self._drop_workers()
                raise
            if describe is not None:
                describe(building)
            sync_tree(building)
            building.rename(target)
        return target

    def _write_export(self, trainer: Trainer, building: Path) -> None:
        """Have the weights written to a folder of this machine; with an object store by way of it,
        since the first rank may be on another node."""
        if self.folder.store is None:
            trainer.export(str(building))
            return
        place = self.folder.store / "exports" / building.name.removeprefix(".build-")
        place.remove()
        trainer.export(str(place))
        place.fetch(building, list(place.objects()))

    def close(self) -> None:
        """Stop the workers and the private cluster."""
        self._drop_workers()
        self._cluster.close()

    def _finish_iteration(
        self,
        trainer: Trainer,
        iteration: int,
        steps: list[dict[str, float]],
        recorder: RolloutRecorder,
    ) -> IterationReceipt:
        means = {key: value for key, value in means_of_steps(steps).items() if key != "step"}
        receipt = IterationReceipt(
            iteration=iteration,
            first_step=int(steps[0]["step"]),
            last_step=int(steps[-1]["step"]),
            checkpoint=self.folder.checkpoint_address(iteration),
            metrics=means,
        )
        state = trainer.state_dict() | {
            "mlflow_run_id": self.plan.mlflow_run_id,
            "run_key": self.plan.run_key,
        }
        # Steps and receipt come first: the checkpoint's sentinel is what makes the iteration count
        # as done.
        self.folder.save_steps(iteration, steps)
        self.folder.save_receipt(f"iteration-{iteration:04d}", receipt)
        training = self.recipe.training
        best = self.folder.best(training.best_metric, training.keep_best)
        best += worth_keeping(self.folder, self.recipe)
        recorder.flush()
        self._checkpoint.write(trainer, iteration, state, best)
        self._iteration = iteration
        self._intact.add(iteration)
        warn_of_nothing_learnt(self.recipe, steps, f"train-iteration {iteration}")
        return receipt

    def _set_damaged_aside(self) -> None:
        """Look once, before the first iteration, for checkpoints that changed since an earlier
        process wrote them."""
        if self._checked:
            return
        self._checked = True
        for sentence in self.folder.set_damaged_aside():
            announce(ProgressEvent("note", text=sentence))
        self._intact.add(self.folder.last_complete())

    def _check_intact(self, iteration: int) -> None:
        """Compare a checkpoint that is about to be loaded with its digests, once.

        Raises: StorageError when it is not as it was written.
        """
        if iteration in self._intact:
            return
        if (damage := self.folder.damage(iteration)) is not None:
            raise StorageError(
                f"checkpoint of iteration {iteration}: {damage}; restore it from a copy, or take "
                "another iteration"
            )
        self._intact.add(iteration)

    def _trainer_at(self, iteration: int) -> Trainer:
        """Return a trainer with the weights after `iteration`."""
        if self._trainer is None or self._iteration != iteration:
            self._drop_workers()
            self._trainer = self._start_workers(self.recipe)
            self._trainer.prepare(self._rows("eval"))
            if iteration:
                self._check_intact(iteration)
                self._trainer.load(str(self.folder.checkpoint(iteration)))
                self._trainer.load_state_dict(self.folder.trainer_state(iteration))
            follow_orders(self._trainer, self.folder.root, self.recipe.rollout.orders)
            self._iteration = iteration
        return self._trainer

    def _trainer_of_teacher(self) -> Trainer:
        """Return a trainer that loaded the teacher as its policy, for evaluation only."""
        self._drop_workers()
        self._tell_of_makings(self.recipe)
        self._trainer, self._iteration = self._start_workers(as_teacher(self.recipe)), OTHER
        return self._trainer

    def _trainer_of_export(self) -> Trainer:
        """Return a trainer that loaded the exported folder, for evaluation only."""
        self._drop_workers()
        recipe = measuring(self.recipe, str(self.folder.export))
        self._trainer, self._iteration = self._start_workers(recipe), OTHER
        return self._trainer

    def _with_reference(self, items: Sequence[Item], iteration: int) -> Sequence[Item]:
        """Add the reference model's log-probabilities to rows whose scores compare with them."""
        if not self.recipe.has_pairs:
            return items
        return self._trainer_at(iteration).with_reference(items)

    def _tell_of_makings(self, recipe: Recipe) -> None:
        """Say which models are about to be made, and how long that takes."""
        for line in making_notes(recipe, self.home.models):
            announce(ProgressEvent("note", text=line))

    def _start_workers(self, recipe: Recipe) -> Trainer:
        self.started_workers = True
        announce(ProgressEvent("start workers"))
        self._tell_of_makings(recipe)
        self._cluster.enter_context(cluster_of(recipe))
        recipe = with_folders(with_devices_there(recipe), self.home)
        source = locate_start(recipe, self.home.models)
        check_located(recipe, source)
        trainer_cls, chosen = trainers.chosen(
            recipe.trainer, import_target(recipe.domain.traits.trainer)
        )
        trainer = trainer_cls(recipe, source, self._rows("train"), **chosen)
        with needing(needs_of(recipe, source, self.folder, self.home)):
            trainer.build()
        for line in trainer.notes():
            announce(ProgressEvent("note", text=line))
        return trainer

    def _rows(self, split: str) -> Sequence[Item]:
        """Return the prepared rows of a split, opened once."""
        path = Path(self.plan.cache.path) / f"{split}.parquet"
        if split not in self._opened:
            places = self.plan.cache.places
            has_pairs = self.recipe.has_pairs
            self._opened[split] = PairRows(path, places) if has_pairs else load_prepared(path)
        return self._opened[split]

    def _set_rows(self, name: str) -> Sequence[Item]:
        """Return the prepared rows of a named set."""
        return load_prepared(Path(self.plan.cache.sets[name].path))

    def _drop_workers(self) -> None:
        try:
            self._checkpoint.settle(wait=True)
        finally:
            if self._trainer is not None:
                trainer, self._trainer = self._trainer, None
                trainer.close()


def _can_be_loaded(export: Path) -> bool:
    """Return True if every model of an export is complete; adapters alone are not."""
    images = export / IMAGES_FOLDER
    return is_model(export) and (is_model(images) or not images.is_dir())


_sessions: dict[str, TrainingSession] = {}


def session_for(plan: RunPlan) -> TrainingSession:
    """Return the session of a run in this process, opened on first use."""
    if plan.run_dir not in _sessions:
        _sessions[plan.run_dir] = TrainingSession(plan)
    return _sessions[plan.run_dir]


@contextmanager
def closing_sessions() -> Iterator[None]:
    """Close every session of this process at the end of the block, whatever state it is in."""
    try:
        yield
    finally:
        close_sessions()


def close_sessions() -> None:
    """Stop the workers of every session of this process; a session that is used again starts new
    ones."""
    while _sessions:
        _sessions.popitem()[1].close()


@contextmanager
def close_run(plan: RunPlan) -> Iterator[None]:
    """End the MLflow run with the block: as finished, failed, or killed if the flow was
    cancelled or a watcher stopped it. Gauges for Prometheus are served until then."""
    session = session_for(plan)
    tracking = session.tracking
    try:
        with served_gauges(session.recipe.tracking.prometheus, session.folder.root.name):
            yield
    except StoppedByWatcher as error:
        tracking.finish_after(error, RunStatus.KILLED)
        raise
    except Exception as error:
        tracking.finish_after(error, RunStatus.FAILED)
        raise
    except BaseException as error:
        tracking.finish_after(error, RunStatus.KILLED)
        raise
    tracking.finish(RunStatus.FINISHED, nothing_done=not session.started_workers)
