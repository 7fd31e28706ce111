"""The folder of one training run: recipe, receipts, checkpoints. A checkpoint counts only with its
sentinel."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import subprocess
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rl_core.data.store.atomic import atomic_write_json, atomic_write_text
from rl_core.errors import RecipeError, StorageError
from rl_core.runs.checkpoints.claim import Claim
from rl_core.runs.checkpoints.local import LocalCheckpoints
from rl_core.runs.checkpoints.mirror import Mirror
from rl_core.runs.checkpoints.remote import RemoteCheckpoints
from rl_core.runtime.registry import nearest
from rl_core.runtime.storage import RemoteFolder
from schemas.receipts import EvalReceipt, IterationReceipt, Receipt
from schemas.recipe import Recipe
from schemas.sections.evaluation_sets import without_default_evaluation
from schemas.sections.optimizer import without_default_optimizer
from schemas.sections.parts import without_unset_parts
from schemas.sections.rollout import RolloutConfig
from schemas.sections.sampling import without_default_sampling
from schemas.sections.sft import SftConfig

R = TypeVar("R", bound=Receipt)

RECIPE_FILE = "recipe.yaml"
ORDERS_FILE = "orders.jsonl"
"""File of a run folder that says when its engine took which weights in flight."""
STORE_FILE = "storage.txt"
"""File of a run folder that says where its checkpoints lie, if that is an object store."""

NOT_TRAINED = {
    "placement": True,
    "registration": True,
    "retraining": True,
    "rollout": {
        "sync": {"content"},
        "engine_restarts": True,
        "orders": True,
        "server": True,
        "vllm": {"tensor_parallel_size", "pipeline_parallel_size"},
    },
    "tracking": True,
    "validation": True,
    "watch": True,
    "training": {"on_no_signal", "no_signal_steps", "checkpoints_in_background"},
}
"""Keys of a recipe that change no step. Validation decides whether a run starts, not what it
does; placement is left out, so that a run may continue on other hardware."""


def run_key(recipe: Recipe, cache_hash: str) -> str:
    """Return the identity of a run: recipe and data. The rows that `data.map` gives are in the hash
    of the cache."""
    values = trained_values(recipe)
    del values["data"]["map"]
    text = json.dumps(values, sort_keys=True) + cache_hash
    return hashlib.sha256(text.encode()).hexdigest()


def trained_values(recipe: Recipe) -> dict[str, Any]:
    """Return the values of a recipe that its training depends on. What is unset or at a default is
    left out, for keys that came later than the first recipes."""
    values = without_unset_parts(recipe.model_dump(mode="json", exclude=NOT_TRAINED))
    values = without_default_evaluation(without_default_sampling(values))
    values = without_default_optimizer(values)
    if recipe.sft == SftConfig():
        del values["sft"]
    if not values["rollout"]["vllm"]["arguments"]:
        del values["rollout"]["vllm"]["arguments"]
    for key in ("extra_prompts", "carry_over", "in_flight"):
        if not values["rollout"][key]:
            del values["rollout"][key]
    if recipe.rollout.tokens_per_request == RolloutConfig().tokens_per_request:
        del values["rollout"]["tokens_per_request"]
    if not values["rollout"]["episodes"]["continuous"]:
        del values["rollout"]["episodes"]["continuous"]
    if values["model"]["quantize"] is None:
        del values["model"]["quantize"]
    if values["data"]["source"] is None:
        del values["data"]["source"]
    return values


class RunFolder:
    """Paths and atomic writes of one run. Where its recipe names an object store, checkpoints lie
    there alone, and everything else there as well."""

    def __init__(self, root: Path, store: RemoteFolder | None = None) -> None:
        """Open the folder; nothing is created. Args: store: the run's folder of an object store;
        unset takes what the folder itself says."""
        self.root = root
        noted = root / STORE_FILE
        if store is None and noted.is_file():
            store = RemoteFolder(noted.read_text(encoding="utf-8").strip())
        self.store = store
        self._mirror = None if store is None else Mirror(root, store)
        self._claim = None if store is None else Claim(root, store)
        self._checkpoints = (
            LocalCheckpoints(root / "checkpoints")
            if store is None or self._claim is None
            else RemoteCheckpoints(store / "checkpoints", self._claim)
        )

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def export(self) -> Path:
        return self.root / "model"

    @property
    def rollouts(self) -> Path:
        """Folder of what every step sampled."""
        return self.root / "rollouts"

    @property
    def no_signal(self) -> Path:
        """Record of steps in a row that taught nothing."""
        return self.root / "no-signal.json"

    @property
    def outbox(self) -> Path:
        """File of the MLflow entries that have not been sent yet."""
        return self.root / "mlflow-outbox.jsonl"

    @property
    def profiles(self) -> Path:
        """Folder of the traces of recorded steps."""
        return self.root / "profiles"

    @property
    def trackers(self) -> Path:
        """Folder of what trackers next to MLflow keep on this machine."""
        return self.root / "trackers"

    def fetch(self) -> None:
        """Bring the folder to what its store holds, if it has one. What is here of another
        run, such as of one that was started anew elsewhere since, is removed."""
        if self._mirror is None:
            return
        before = self._remembered("start")
        self._mirror.fetch()
        if before not in (None, self._remembered("start")):
            shutil.rmtree(self.root)
            self._mirror.fetch()

    def create(self, recipe_text: str) -> str | None:
        """Create the folder with the resolved recipe and the source revision, and become the driver
        of a run in a store. Returns: a sentence about a driver elsewhere that this one replaces."""
        for folder in (
            self.checkpoints,
            self.root / "receipts",
            self.root / "samples",
            self.root / "steps",
        ):
            folder.mkdir(parents=True, exist_ok=True)
        replaced = None
        if self._claim is not None:
            replaced = self._claim.take()
            atomic_write_text(self.root / STORE_FILE, f"{self.store}\n")
        atomic_write_text(self.root / RECIPE_FILE, recipe_text)
        atomic_write_text(self.root / "revision.txt", source_revision() + "\n")
        return replaced

    def remember_tracking(self, key: str, mlflow_run_id: str, prepared: str) -> None:
        """Record the MLflow run that this folder belongs to, and the folder of its prepared
        rows."""
        known = {"run_key": key, "mlflow_run_id": mlflow_run_id, "prepared": prepared}
        # Each machine may have an MLflow of its own; a start is the same run wherever it goes on.
        known["start"] = self._remembered("start") or uuid.uuid4().hex
        atomic_write_json(self.root / "run.json", known)
        self._send()

    @property
    def mlflow_run_id(self) -> str | None:
        """Id of the MLflow run; None before the run is tracked."""
        return self._remembered("mlflow_run_id")

    @property
    def prepared(self) -> Path | None:
        """Folder of the prepared rows; None in the folder of an older version."""
        found = self._remembered("prepared")
        return None if found is None else Path(found)

    def _remembered(self, key: str) -> str | None:
        path = self.root / "run.json"
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8")).get(key)
        except (ValueError, AttributeError) as error:
            raise StorageError(
                f"{path} is damaged ({error}); restore it from a copy, or start anew with --fresh"
            ) from error

    def discard(self) -> None:
        """Remove the run's state, for a fresh start."""
        shutil.rmtree(self.root, ignore_errors=True)
        if self.store is not None:
            self.store.remove()

    def save_receipt(self, name: str, receipt: Receipt) -> None:
        """Store the receipt of a finished task."""
        atomic_write_json(self.root / "receipts" / f"{name}.json", receipt.model_dump(mode="json"))
        self._send()

    def receipt(self, name: str, kind: type[R]) -> R | None:
        """The receipt of a task that an earlier run finished, or None."""
        path = self.root / "receipts" / f"{name}.json"
        if path.is_file():
            return _read_receipt(path, kind)
        return None

    def checkpoint(self, iteration: int) -> Path | RemoteFolder:
        """Return the folder of an iteration's checkpoint."""
        return self._checkpoints.at(iteration)

    def checkpoint_address(self, iteration: int) -> str:
        """Return where an iteration's checkpoint is, or will be, for people to find it. In a store
        further characters follow, which tell attempts apart."""
        return f"{self._checkpoints.root}/iteration-{iteration:04d}"

    def last_complete(self) -> int:
        """Return the newest iteration with a complete checkpoint; 0 if there is none."""
        return max(self.complete_iterations(), default=0)

    def complete_iterations(self) -> list[int]:
        """Return the iterations whose complete checkpoints are there, in order."""
        return self._checkpoints.complete()

    def damage(self, iteration: int) -> str | None:
        """Return what is wrong with a complete checkpoint; None if it is as it was written."""
        return self._checkpoints.damage(iteration)

    def set_damaged_aside(self) -> list[str]:
        """Rename the newest checkpoints until one is as it was written, so that training continues
        from that one.

        Returns: a sentence about each checkpoint that was set aside.
        """
        said = []
        while newest := self.last_complete():
            if (damage := self.damage(newest)) is None:
                break
            aside = self._checkpoints.set_aside(newest)
            said.append(
                f"checkpoint of iteration {newest}: {damage}; set aside as {aside}, "
                f"and training continues from iteration {self.last_complete()}"
            )
        return said

    def best(self, metric: str, count: int) -> list[int]:
        """Return the iterations with the `count` highest values of a metric, by their receipts;
        ties go to the newer.

        Args: metric: a metric of the iteration, or, prefixed by `eval/`, of the evaluation that
        follows it.
        Raises: RecipeError naming the known metrics when no iteration has this one.
        """
        scores: dict[int, float] = {}
        known: set[str] = set()
        complete = self.complete_iterations() if count else []
        for path in sorted(self.root.glob("receipts/iteration-*.json")) if count else []:
            values = self._values(path)
            known |= values.keys()
            iteration = int(path.stem.split("-")[1])
            kept = iteration in complete or iteration > max(complete, default=0)
            if kept and math.isfinite(values.get(metric, math.nan)):
                scores[iteration] = values[metric]
        if known and metric not in known and not metric.startswith("eval/"):
            raise RecipeError(
                f"training.best_metric: no metric {metric!r}{nearest(metric, sorted(known))}"
            )
        return sorted(scores, key=lambda iteration: (scores[iteration], iteration), reverse=True)[
            :count
        ]

    def _values(self, receipt: Path) -> dict[str, float]:
        """Return the metrics of an iteration, and of the evaluation that followed it, if any."""
        done = _read_receipt(receipt, IterationReceipt)
        played = self.receipt(f"evaluate-iteration-{done.iteration}", EvalReceipt)
        if played is None:
            return done.metrics
        return done.metrics | {f"eval/{name}": value for name, value in played.values().items()}

    def evaluations(self) -> list[EvalReceipt]:
        """Return every evaluation so far, by step; the baseline first and the final one last."""
        ranks = {"baseline": 0, "final": 2}
        found = []
        for path in self.root.glob("receipts/evaluate-*.json"):
            found.append(_read_receipt(path, EvalReceipt))
        return sorted(found, key=lambda one: (one.step, ranks.get(one.label, 1)))

    def trainer_state(self, iteration: int) -> dict[str, Any]:
        """Return the driver's state in a complete checkpoint."""
        return self._checkpoints.trainer_state(iteration)

    @contextmanager
    def publish_checkpoint(
        self,
        iteration: int,
        trainer_state: Mapping[str, object],
        keep_last: int,
        spare: Collection[int] = (),
    ) -> Iterator[Path | RemoteFolder]:
        """Yield a folder to write into; on exit it is complete, or nothing of it counts.

        Then all but the newest `keep_last` checkpoints and those of the iterations to `spare` are
        removed. Raises: StorageError when a write fails; Unreachable when a store does not answer.
        """
        with self._checkpoints.publish(iteration, trainer_state) as building:
            yield building
            self._send()
        self._checkpoints.prune(iteration, keep_last, spare)

    def _send(self) -> None:
        """Store what is new or changed, if there is a store. Raises: StorageError when another
        driver took the run."""
        if self._mirror is not None and self._claim is not None:
            self._claim.check()
            self._mirror.send()

    def save_steps(self, iteration: int, steps: list[dict[str, float]]) -> None:
        """Store the metrics of an iteration's steps."""
        text = "".join(json.dumps(step) + "\n" for step in steps)
        atomic_write_text(self.root / "steps" / f"iteration-{iteration:04d}.jsonl", text)

    def history(self) -> list[dict[str, float]]:
        """Return the metrics of every step of the complete iterations, in order."""
        last = self.last_complete()
        files = sorted((self.root / "steps").glob("iteration-*.jsonl"))
        kept = [path for path in files if int(path.stem.split("-")[1]) <= last]
        entries: list[dict[str, float]] = []
        for path in kept:
            for line in path.read_text(encoding="utf-8").splitlines():
                entries.append(json.loads(line))
        return entries


def _read_receipt(path: Path, kind: type[R]) -> R:
    """Raises: StorageError on a damaged file."""
    try:
        return kind.model_validate_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        reason = str(error).splitlines()[0]
        raise StorageError(
            f"{path} is damaged ({reason}); remove it, and its task is done again"
        ) from error


def source_revision() -> str:
    """Return the git revision of the code, or `unknown` outside a checkout."""
    folder = Path(__file__).resolve().parent
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError:
        return "unknown"
    return answer.stdout.strip() or "unknown"
