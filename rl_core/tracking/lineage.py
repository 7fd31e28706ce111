"""Tracing of a model version back to the rows that it was trained on.

version -> its tags -> run -> artifact `recipe.yaml` and artifact `receipts/cache.json` (a
`CacheReceipt`) -> the source files with their sha256. Only records of the run and the version are
read, so this works on any machine that reaches the MLflow database and its artifacts; `checks`
alone reads the files themselves.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from rl_core.data.store.changes import Check, check_cache, check_sources, check_weights
from rl_core.errors import StorageError
from rl_core.tracking.ancestors import Ancestor, ancestors
from rl_core.tracking.database import tracking_client
from rl_core.tracking.model_versions import (
    Promotion,
    RegisteredVersion,
    find_version,
    promotions,
)
from rl_core.tracking.run import run_page
from rl_core.tracking.run_attempts import Opening, read_openings
from schemas.receipts import CacheReceipt, SourceFile, ValidationReport

RECIPE_ARTIFACT = "recipe.yaml"
CACHE_ARTIFACT = "receipts/cache.json"
CHOSEN_TAG = "registered_because"
"""Tag of a run, and of its version, with the reason for the iteration that was registered."""
VALIDATION_ARTIFACT = "receipts/validation.json"


@dataclass(frozen=True)
class RunLineage:
    """Every link from a training run back to its source files."""

    run_id: str
    run_name: str
    run_key: str
    mlflow_url: str
    """The run's page in the MLflow UI; empty if no server is known."""
    openings: list[Opening]
    """Flow runs that worked on the training run; those after the first resumed it."""
    git_revision: str
    """Git revision of the code that last worked on the run; empty if it was not recorded."""
    recipe: str
    """The resolved recipe, as YAML text."""
    cache: CacheReceipt

    @property
    def sources(self) -> list[SourceFile]:
        """Files that the training and held-out rows were made from."""
        return self.cache.sources

    def to_dict(self) -> dict[str, Any]:
        """Return the whole lineage in JSON's types."""
        return asdict(self) | {"cache": self.cache.model_dump(mode="json")}

    def public(self) -> dict[str, Any]:
        """Return the lineage in JSON's types without folders and addresses of this machine."""
        return {
            "run_id": self.run_id,
            "run_key": self.run_key,
            "git_revision": self.git_revision,
            "rows": {"training": self.cache.num_train_rows, "held_out": self.cache.num_eval_rows},
            "sources": [
                {"name": Path(one.path).name, "sha256": one.sha256} for one in self.sources
            ],
        }


@dataclass(frozen=True)
class Lineage(RunLineage):
    """Every link from a model version back to its source files."""

    name: str
    version: int
    registered_at: str
    model_dir: str
    weights_digest: str
    """Digest as `rl_core.data.store.weights` computes it; empty for versions that recorded none."""
    checkpoint: str
    iteration: int | None
    """Iteration of the run whose weights these are; None for versions that recorded none."""
    chosen_because: str
    """Reason for this iteration, of a run that registered its best; empty if it took the last."""
    metrics: dict[str, float]
    promotions: list[Promotion]
    """Promotions of this version to champion."""
    eval_digest: str
    ancestors: list[Ancestor]
    """Earlier versions that this one was made with, the nearest first."""

    def public(self) -> dict[str, Any]:
        """Return the lineage in JSON's types without folders and addresses of this machine."""
        return super().public() | {
            "name": self.name,
            "version": self.version,
            "registered_at": self.registered_at,
            "weights_digest": self.weights_digest,
            "iteration": self.iteration,
            "eval_digest": self.eval_digest,
            "metrics": self.metrics,
            "ancestors": [
                {"name": one.name, "version": one.version, "weights_digest": one.weights_digest}
                for one in self.ancestors
            ],
        }

    def checks(self) -> Iterator[Check]:
        """Check that source files, prepared rows and weights, those of earlier versions too, are
        still those that were recorded."""
        yield from check_sources(self.sources)
        yield check_cache(self.cache)
        if self.weights_digest:
            yield check_weights(self.model_dir, self.weights_digest)
        for one in self.ancestors:
            if one.weights_digest:
                yield check_weights(one.model_dir, one.weights_digest)

    @property
    def origin(self) -> str:
        """Description of the iteration and checkpoint that the weights are from."""
        if self.iteration is None:
            return f"checkpoint {self.checkpoint}"
        why = f" ({self.chosen_because})" if self.chosen_because else ""
        return f"iteration {self.iteration}{why}, checkpoint {self.checkpoint}"

    def __str__(self) -> str:
        lines = [
            f"model    {self.name} v{self.version}  {self.model_dir}",
            f"from     {self.origin}",
            *map(str, self.ancestors),
            f"run      {self.run_name}  {self.run_id}  key {self.run_key}  git "
            f"{self.git_revision or 'not recorded'}",
            *(f"champion {p.at}  by {p.by}: {p.reason}" for p in self.promotions),
            *([f"MLflow   {self.mlflow_url}"] if self.mlflow_url else []),
            *(
                f"{'resumed' if number else 'opened':8} {o.at}  flow run {o.flow_run_id}  "
                f"{o.flow_run_url}".rstrip()
                for number, o in enumerate(self.openings)
            ),
            f"cache    {self.cache.run_hash}",
            f"rows     {self.cache.num_train_rows} training, {self.cache.num_eval_rows} held out",
            f"held out {self.eval_digest}",
        ]
        return "\n".join(
            [*lines, *(f"source   {file.path}  sha256 {file.sha256}" for file in self.sources)]
        )


@dataclass(frozen=True)
class IterationLineage(RunLineage):
    """Every link from the weights of a run's iteration, exported from its checkpoint, back to its
    source files."""

    iteration: int
    step: int
    """Number of training steps behind the weights."""
    checkpoint: str
    weights_digest: str
    """Digest as `rl_core.data.store.weights` computes it."""
    metrics: dict[str, float]
    """Means of the evaluation that followed the iteration; empty if none did."""
    eval_digest: str
    """Digest of the rows of that evaluation; empty if there was none."""


def trace(tracking_uri: str, model: str, version: int | None = None, *, ui: str = "") -> Lineage:
    """Return the lineage of a version, named as `registry.find_version` takes it.

    Args: ui: address of the MLflow UI. Raises: StorageError when a link is missing, or the version
    and its run name different caches.
    """
    found = find_version(tracking_uri, model, version)
    name, version, tags = found.name, found.version, found.tags
    absent = []
    for tag in ("run_id", "run_key", "cache_hash", "eval_digest", "checkpoint"):
        if tag not in tags:
            absent.append(tag)
    if absent:
        raise StorageError(
            f"model {name} v{version} has no tag {', '.join(absent)}: rl-train did not register it"
        )
    run = trace_run(tracking_uri, tags["run_id"], ui=ui)
    if run.cache.run_hash != tags["cache_hash"]:
        raise StorageError(
            f"model {name} v{version} was registered from cache {tags['cache_hash']}, "
            f"but run {run.run_id} recorded cache {run.cache.run_hash}"
        )

    def recipe_of(one: RegisteredVersion) -> str:
        return read_artifact(tracking_client(tracking_uri), one.tags["run_id"], RECIPE_ARTIFACT)

    return Lineage(
        **vars(replace(run, run_key=tags["run_key"])),
        name=name,
        version=version,
        registered_at=found.created_at,
        model_dir=tags.get("model_dir", ""),
        weights_digest=tags.get("weights_digest", ""),
        checkpoint=tags["checkpoint"],
        iteration=int(tags["iteration"]) if "iteration" in tags else None,
        chosen_because=tags.get(CHOSEN_TAG, ""),
        metrics=found.metrics,
        promotions=[one for one in promotions(tracking_uri, name) if one.version == version],
        eval_digest=tags["eval_digest"],
        ancestors=ancestors(tracking_uri, found, recipe_of),
    )


def trace_run(tracking_uri: str, run_id: str, *, ui: str = "") -> RunLineage:
    """Return the lineage of a training run, whether it registered a version or not. Raises:
    StorageError."""
    client = tracking_client(tracking_uri)
    run = client.get_run(run_id)
    cache = CacheReceipt.model_validate_json(read_artifact(client, run_id, CACHE_ARTIFACT))
    return RunLineage(
        run_id=run_id,
        run_name=run.info.run_name or "",
        run_key=run.data.tags.get("run_key", ""),
        mlflow_url=run_page(ui, run.info.experiment_id, run_id) if ui else "",
        openings=read_openings(run.data.tags),
        git_revision=run.data.tags.get("git_revision", ""),
        recipe=read_artifact(client, run_id, RECIPE_ARTIFACT),
        cache=cache,
    )


def validation_of(tracking_uri: str, run_id: str) -> ValidationReport:
    """Return the validation report that a run recorded. Raises: StorageError."""
    text = read_artifact(tracking_client(tracking_uri), run_id, VALIDATION_ARTIFACT)
    return ValidationReport.model_validate_json(text)


def read_artifact(client: MlflowClient, run_id: str, artifact: str) -> str:
    """Return the text of a run's artifact. Raises: StorageError when it does not exist."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return Path(client.download_artifacts(run_id, artifact, folder)).read_text(
                encoding="utf-8"
            )
        except (MlflowException, OSError) as error:
            raise StorageError(
                f"run {run_id} has no artifact {artifact}; the lineage ends there"
            ) from error
