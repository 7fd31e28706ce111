"""Model versions: the registered weights, their held-out metrics, and the current champion.

Weights stay in `model_dir` (an "external" model to MLflow: no copy of gigabytes); MLflow records
the path, the held-out metrics tied to the evaluated dataset, and the tags from which
`lineage.trace` walks back to the rows.

MLflow's own store looks up `models:/<id>` through the process-wide tracking URI, whatever client
asked, so `register_version` sets that URI to the run's while it works.
"""

import getpass
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import mlflow
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from rl_core.errors import StorageError
from rl_core.tracking.database import is_missing, tracking_client
from rl_core.tracking.keys import filter_value, original_key, stored_key
from rl_core.tracking.run import LoggedDataset, TrackingRun

CHAMPION = "champion"
PROMOTION_TAG = "promotion."
"""Prefix of the registered model's numbered tags that record moves of the champion alias."""
REQUIRED_TAGS = ("run_key", "cache_hash", "eval_digest", "accuracy", "checkpoint")
"""Tags that the caller gives; `run_id` and `model_dir` are added."""


LAST_VERSION = 2**63 - 1
"""Largest number that a database can hold."""
_REFERENCE = re.compile(r"models:/(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>\d+))")
_REFUSED_WHEN_LOGGED = re.compile(r"""[/:.%"']""")


@dataclass(frozen=True)
class Promotion:
    """One move of the champion alias: version, previous version, time, person and reason."""

    version: int
    over: int | None
    """Champion before the move; None if there was none."""
    at: str
    """Time of the move in UTC, ISO 8601."""
    by: str
    reason: str


@dataclass(frozen=True)
class RegisteredVersion:
    """A version of a registered model with its tags and the metrics it was registered with."""

    name: str
    version: int
    tags: dict[str, str]
    metrics: dict[str, float]
    created_at: str
    """Time of the registration in UTC, ISO 8601."""


def register_version(
    run: TrackingRun,
    name: str,
    model_dir: Path,
    metrics: Mapping[str, float],
    eval_dataset: LoggedDataset,
    tags: Mapping[str, object],
) -> int:
    """Register the model in `model_dir` as the next version of `name`; no alias moves.

    The same checkpoint of the same run is registered once: a retry gets the version that exists.

    Args: metrics: measured on `eval_dataset`. tags: at least `REQUIRED_TAGS`.
    Raises: StorageError when `model_dir` is no folder or a required tag is missing.
    """
    missing = [tag for tag in REQUIRED_TAGS if tag not in tags]
    if missing:
        raise StorageError(
            f"model {name}: missing tags {', '.join(missing)}; each version carries all of them"
        )
    if not model_dir.is_dir():
        raise StorageError(
            f"model {name}: {model_dir} is not a folder; export the model there first"
        )
    all_tags = {key: str(value) for key, value in tags.items()}
    all_tags |= {"run_id": run.run_id, "model_dir": str(model_dir.absolute())}

    known = _version_of_checkpoint(run.client, name, run.run_id, all_tags["checkpoint"])
    if known is not None:
        return int(known.version)
    with _process_wide(run.tracking_uri):
        return _register_new(run, name, metrics, eval_dataset, all_tags)


def _register_new(
    run: TrackingRun,
    name: str,
    metrics: Mapping[str, float],
    eval_dataset: LoggedDataset,
    tags: dict[str, str],
) -> int:
    # Of the model as logged, whose name takes fewer characters; versions are found by the other.
    logged_as = _REFUSED_WHEN_LOGGED.sub("_", name)
    model_id = mlflow.create_external_model(
        logged_as, source_run_id=run.run_id, tags=tags, experiment_id=run.experiment_id
    ).model_id
    for key, value in metrics.items():
        run.client.log_metric(
            run.run_id,
            stored_key(key),
            value,
            dataset_name=eval_dataset.name,
            dataset_digest=eval_dataset.digest,
            model_id=model_id,
            synchronous=True,
        )
    try:
        run.client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    created = run.client.create_model_version(
        name, source=f"models:/{model_id}", run_id=run.run_id, tags=tags, model_id=model_id
    )
    return int(created.version)


@contextmanager
def _process_wide(tracking_uri: str) -> Iterator[None]:
    """Set the process-wide tracking URI during the block; afterwards it is the environment's again.

    MLflow writes each URI into the environment too, where child processes would read it as the
    user's setting, and reads the environment only while it was told none, or None.
    """
    before = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(tracking_uri)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(None)  # pyright: ignore[reportArgumentType]
        if before is not None:
            os.environ["MLFLOW_TRACKING_URI"] = before


def champion(tracking_uri: str, name: str) -> RegisteredVersion | None:
    """Return the version with the alias `champion`, or None if there is no such model or alias."""
    client = tracking_client(tracking_uri)
    found = _at_alias(client, name, CHAMPION)
    if found is None:
        return None
    return describe_version(client, found)


def newest(tracking_uri: str, name: str) -> RegisteredVersion | None:
    """Return the version registered last, or None if there is no such model."""
    client = tracking_client(tracking_uri)
    versions = _versions(client, name)
    if versions:
        return describe_version(client, max(versions, key=lambda found: int(found.version)))
    return None


def find_version(tracking_uri: str, model: str, version: int | None = None) -> RegisteredVersion:
    """Return the version that `models:/<name>@<alias>`, `models:/<name>/<number>`, or a name and a
    number refer to.

    Raises: StorageError listing the existing ones.
    """
    named = _REFERENCE.fullmatch(model)
    if named is None and (model.startswith("models:") or version is None):
        raise StorageError(
            f"{model!r}: expected models:/NAME@{CHAMPION}, models:/NAME/VERSION, or NAME VERSION"
        )
    name = named["name"] if named else model
    if is_missing(tracking_uri):
        raise StorageError(
            f"model {name!r}: nothing is registered in {tracking_uri} yet; train a recipe, or set "
            "RL_TRAIN_HOME to the home that has it"
        )
    client = tracking_client(tracking_uri)
    if named and named["alias"]:
        found = _at_alias(client, name, named["alias"])
        wanted = f"alias {named['alias']}"
    else:
        number = int(named["version"]) if named else version
        exists = number is not None and number <= LAST_VERSION
        same = _versions(client, name, f"version_number = {number}") if exists else []
        found = next(iter(same), None)
        wanted = f"version {number}"
    if found is None:
        raise StorageError(
            f"model {name!r} has no {wanted} in {tracking_uri}; {_what_there_is(client, name)}"
        )
    return describe_version(client, found)


def all_versions(tracking_uri: str) -> list[tuple[RegisteredVersion, bool]]:
    """Return every version of every model, by name and the newest first, each with True if it is
    the champion."""
    if is_missing(tracking_uri):
        return []
    client = tracking_client(tracking_uri)
    found: list[tuple[RegisteredVersion, bool]] = []
    for model in sorted(client.search_registered_models(), key=lambda one: one.name):
        leading = str(model.aliases.get(CHAMPION, ""))
        for version in _versions(client, model.name):
            found.append((describe_version(client, version), str(version.version) == leading))
    return found


def promote(
    tracking_uri: str, name: str, version: int, reason: str, by: str | None = None
) -> Promotion:
    """Move the champion alias to `version`, and record the person and the reason; an older version
    is a rollback.

    Args: by: unset takes user and host. Raises: StorageError when there is no such version.
    """
    find_version(tracking_uri, name, version)
    client = tracking_client(tracking_uri)
    before = _at_alias(client, name, CHAMPION)
    promotion = Promotion(
        version=version,
        over=None if before is None else int(before.version),
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        by=by or f"{getpass.getuser()}@{socket.gethostname()}",
        reason=reason,
    )
    number = len(promotions(tracking_uri, name)) + 1
    client.set_registered_model_alias(name, CHAMPION, str(version))
    client.set_registered_model_tag(
        name, f"{PROMOTION_TAG}{number:04d}", json.dumps(asdict(promotion))
    )
    for key in ("at", "by", "reason"):
        client.set_model_version_tag(name, str(version), f"promoted_{key}", getattr(promotion, key))
    return promotion


def promotions(tracking_uri: str, name: str) -> list[Promotion]:
    """Return every move of the champion alias of a model, the first one first."""
    tags = tracking_client(tracking_uri).get_registered_model(name).tags
    found: list[Promotion] = []
    for key in sorted(tags):
        if key.startswith(PROMOTION_TAG):
            found.append(Promotion(**json.loads(tags[key])))
    return found


def describe_version(client: MlflowClient, found: ModelVersion) -> RegisteredVersion:
    """Return a version with the metrics of its logged model."""
    model_id = str(found.source).removeprefix("models:/")
    measured = client.get_logged_model(model_id).metrics or []
    return RegisteredVersion(
        name=found.name,
        version=int(found.version),
        tags=dict(found.tags),
        metrics={original_key(metric.key): metric.value for metric in measured},
        created_at=datetime.fromtimestamp(found.creation_timestamp / 1000, UTC).isoformat(
            timespec="seconds"
        ),
    )


def _at_alias(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    try:
        return client.get_model_version_by_alias(name, alias)
    except MlflowException as error:
        if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
            return None
        raise


def _versions(client: MlflowClient, name: str, *also: str) -> list[ModelVersion]:
    """Return the versions of a model that meet further conditions, the newest first."""
    if (quoted := filter_value(name)) is None:
        return []
    return list(client.search_model_versions(" and ".join([f"name = {quoted}", *also])))


def _what_there_is(client: MlflowClient, name: str) -> str:
    versions = sorted(int(found.version) for found in _versions(client, name))
    if versions:
        return f"it has version {', '.join(map(str, versions))}"
    names = sorted(found.name for found in client.search_registered_models())
    return f"registered are {', '.join(names) or 'none'}"


def _version_of_checkpoint(
    client: MlflowClient, name: str, run_id: str, checkpoint: str
) -> ModelVersion | None:
    """Return the version that this run registered from this checkpoint, if any."""
    versions = _versions(client, name, f"run_id = '{run_id}'")
    return next((found for found in versions if found.tags.get("checkpoint") == checkpoint), None)
