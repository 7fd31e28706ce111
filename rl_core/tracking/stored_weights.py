"""Weights of registered versions in MLflow's artifact store, where that is not on this machine, and
their way to a machine that lacks them."""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from rl_core.data.store.atomic import disk_errors
from rl_core.data.store.weights import weights_digest
from rl_core.errors import StorageError, Unreachable
from rl_core.tracking.database import tracking_client
from rl_core.tracking.model_versions import RegisteredVersion
from rl_core.tracking.run import TrackingRun

WEIGHTS = "weights"
"""Folder of a run's artifacts with the weights that it registered."""
_LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")


def is_elsewhere(run: TrackingRun) -> bool:
    """Return True if the artifacts of a run are kept where other machines can fetch them."""
    address = run.client.get_run(run.run_id).info.artifact_uri or ""
    scheme = urlsplit(address).scheme
    if scheme == "mlflow-artifacts":
        return urlsplit(run.tracking_uri).hostname not in _LOCAL_HOSTS
    return scheme not in ("", "file")


def store_weights(run: TrackingRun, folder: Path) -> None:
    """Store exported weights with their run, unless its artifacts are on this machine. Raises:
    Unreachable when the store does not take them."""
    if not is_elsewhere(run):
        return
    try:
        run.client.log_artifacts(run.run_id, str(folder), WEIGHTS)
    except Exception as error:  # each store raises what its transport raises
        raise Unreachable(f"{folder}: MLflow's artifact store did not take it ({error})") from error


def weights_here(found: RegisteredVersion, tracking_uri: str, models: Path) -> str:
    """Return the folder of a version's weights on this machine, fetched once if it is elsewhere.

    Args: models: folder in which fetched weights are kept. Raises: StorageError when the weights
    that are there, or were stored, are not those that were registered. A version whose weights are
    nowhere gets the path at which they were.
    """
    noted, wanted = found.tags["model_dir"], found.tags.get("weights_digest", "")
    changed = None
    if Path(noted).is_dir():
        digest = weights_digest(noted) if wanted else ""
        if digest == wanted:
            return noted
        changed = StorageError(
            f"{found.name} v{found.version}: the weights at {noted} were changed (digest "
            f"{digest or 'none'}, registered {wanted}); rl-train reproduce gives the registered "
            "ones"
        )
    if (run_id := found.tags.get("run_id")) is None:
        # Registered by hand: no run of ours has stored anything.
        return _or_fail(noted, changed)
    # Another registry has another model of this name and number.
    label = f"{found.name.replace('/', '-')}-v{found.version}-{wanted[:12]}"
    target = models / "registered" / label
    if target.is_dir():
        return str(target)
    building = target.with_name(f".build-{target.name}-{uuid.uuid4().hex[:8]}")
    building.mkdir(parents=True)
    try:
        client = tracking_client(tracking_uri)
        if not client.list_artifacts(run_id, WEIGHTS):
            return _or_fail(noted, changed)
        with disk_errors(target):
            client.download_artifacts(run_id, WEIGHTS, str(building))
        if (digest := weights_digest(building / WEIGHTS)) != wanted:
            raise StorageError(
                f"{found.name} v{found.version}: the stored weights have digest {digest}, "
                f"registered were {wanted}; rl-train reproduce gives the registered ones"
            )
        if not target.is_dir():
            os.rename(building / WEIGHTS, target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return str(target)


def _or_fail(noted: str, changed: StorageError | None) -> str:
    if changed is not None:
        raise changed
    return noted
