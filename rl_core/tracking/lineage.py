"""Walk back from a model version to the rows it learned from.

version -> its tags -> run -> artifact `recipe.yaml` and artifact `receipts/cache.json` (a `CacheReceipt`) -> the
source files with their sha256. Nothing is read but what the run and the version recorded, so this works on any
machine that reaches the MLflow database and its artifacts.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from rl_core.errors import StorageError
from rl_core.tracking.registry import describe_version, registry_client
from schemas.receipts import CacheReceipt, SourceFile

RECIPE_ARTIFACT = "recipe.yaml"
CACHE_ARTIFACT = "receipts/cache.json"


@dataclass(frozen=True)
class Lineage:
    """Every link from a model version back to its source files."""

    name: str
    version: int
    model_dir: str
    checkpoint: str
    metrics: dict[str, float]
    run_id: str
    run_name: str
    run_key: str
    git_revision: str
    """Tag `git_revision` of the run; empty when the run did not set it."""
    recipe: str
    """The resolved recipe, as YAML text."""
    cache: CacheReceipt
    eval_digest: str

    @property
    def sources(self) -> list[SourceFile]:
        """The files the training and held-out rows were made from."""
        return self.cache.sources

    def __str__(self) -> str:
        lines = [
            f"model    {self.name} v{self.version}  {self.model_dir}",
            f"from     checkpoint {self.checkpoint}",
            f"run      {self.run_name}  {self.run_id}  key {self.run_key}  git {self.git_revision or 'not recorded'}",
            f"cache    {self.cache.run_hash}",
            f"rows     {self.cache.num_train_rows} training, {self.cache.num_eval_rows} held out",
            f"held out {self.eval_digest}",
        ]
        return "\n".join([*lines, *(f"source   {file.path}  sha256 {file.sha256}" for file in self.sources)])


def trace(tracking_uri: str, name: str, version: int) -> Lineage:
    """The lineage of version `version` of model `name`.

    Raises: StorageError when a link is missing, or the version and its run name different caches.
    """
    client = registry_client(tracking_uri)
    try:
        found = client.get_model_version(name, str(version))
    except MlflowException as error:
        raise StorageError(f"no model {name!r} version {version} in {tracking_uri}") from error
    described = describe_version(client, found)
    tags = described.tags
    absent = [tag for tag in ("run_id", "run_key", "cache_hash", "eval_digest", "checkpoint") if tag not in tags]
    if absent:
        raise StorageError(f"model {name} v{version} has no tag {', '.join(absent)}: rl-train did not register it")
    run = client.get_run(tags["run_id"])
    cache = CacheReceipt.model_validate_json(_read_artifact(client, tags["run_id"], CACHE_ARTIFACT))
    if cache.run_hash != tags["cache_hash"]:
        raise StorageError(
            f"model {name} v{version} was registered from cache {tags['cache_hash']}, "
            f"but run {tags['run_id']} recorded cache {cache.run_hash}"
        )
    return Lineage(
        name=name,
        version=version,
        model_dir=tags.get("model_dir", ""),
        checkpoint=tags["checkpoint"],
        metrics=described.metrics,
        run_id=tags["run_id"],
        run_name=run.info.run_name or "",
        run_key=tags["run_key"],
        git_revision=run.data.tags.get("git_revision", ""),
        recipe=_read_artifact(client, tags["run_id"], RECIPE_ARTIFACT),
        cache=cache,
        eval_digest=tags["eval_digest"],
    )


def _read_artifact(client: MlflowClient, run_id: str, artifact: str) -> str:
    """Text of a run's artifact. Raises: StorageError when it is not there."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return Path(client.download_artifacts(run_id, artifact, folder)).read_text(encoding="utf-8")
        except (MlflowException, OSError) as error:
            raise StorageError(f"run {run_id} has no artifact {artifact}; the lineage ends there") from error
