"""A RayJob for KubeRay (1.1 or newer): a Ray cluster that lives as long as the run."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import yaml

from flows.launch.job import Job
from rl_core.errors import StorageError
from rl_core.runtime.storage import SCHEMES, scheme_of

STATE = "/state"
MLFLOW_SCHEMES = ("http", "https", "postgresql", "mysql", "mssql")
"""Schemes of addresses of MLflow servers, and of databases that several machines reach."""


def manifest(job: Job, image: str, namespace: str, mlflow: str | None = None) -> str:
    """Return the manifest of a job.

    Args: image: of `deployments/Dockerfile`, in a registry. mlflow: address of the MLflow server or
    database for the run and its registered version; None keeps them on the head's own disk, with
    which they go.

    Raises: StorageError for a job without an object store, since the disks of its pods go with it,
    or with an MLflow that they do not reach.
    """
    if scheme_of(job.storage or "") not in SCHEMES:
        raise StorageError(
            f"--storage: {job.storage or 'none'}, but a RayJob's pods have no other disk than "
            "their own, which goes with them; give s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"
        )
    if mlflow is not None:
        _check_mlflow(mlflow)
    values: dict[str, Any] = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job.name, "namespace": namespace},
        "spec": {
            # The driver runs on the head, which is a node of the cluster.
            "entrypoint": job.command("auto"),
            "shutdownAfterJobFinishes": True,
            "backoffLimit": 1,
            "rayClusterSpec": {
                "rayVersion": version("ray"),
                "headGroupSpec": {
                    "rayStartParams": {"num-cpus": "0", "num-gpus": "0"},
                    "template": {
                        "spec": _pod("ray-head", image, {"cpu": "4", "memory": "16Gi"}, mlflow)
                    },
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": job.nodes,
                        "minReplicas": job.nodes,
                        "maxReplicas": job.nodes,
                        "rayStartParams": {} if job.gpus else {"num-cpus": str(job.devices)},
                        "template": {
                            "spec": _pod("ray-worker", image, _worker_resources(job), mlflow)
                        },
                    }
                ],
            },
        },
    }
    return yaml.safe_dump(values, sort_keys=False, width=1000)


def _check_mlflow(address: str) -> None:
    """Check that an address of MLflow is none of the pod's own disk. Raises: StorageError."""
    try:
        parts = urlsplit(address)
    except ValueError:
        parts = urlsplit("")
    # A database may name its driver, as postgresql+psycopg2 does.
    if parts.scheme.partition("+")[0] not in MLFLOW_SCHEMES or not parts.hostname:
        raise StorageError(
            f"--mlflow: {address} is no MLflow that a pod reaches; give http://HOST:PORT or "
            "postgresql://USER@HOST/DATABASE"
        )


def _worker_resources(job: Job) -> dict[str, str]:
    if job.gpus:
        return {"cpu": str(4 * job.gpus), "memory": f"{32 * job.gpus}Gi", "gpu": str(job.gpus)}
    return {"cpu": str(job.devices), "memory": f"{4 * job.devices}Gi"}


def _pod(name: str, image: str, wanted: dict[str, str], mlflow: str | None) -> dict[str, object]:
    limits = {"memory": wanted["memory"]}
    if "gpu" in wanted:
        limits["nvidia.com/gpu"] = wanted["gpu"]
    there = [{"name": "MLFLOW_TRACKING_URI", "value": mlflow}] if mlflow else []
    container = {
        "name": name,
        "image": image,
        "env": [
            {"name": "RL_TRAIN_HOME", "value": STATE},
            {"name": "RAY_worker_niceness", "value": "0"},
            *there,
        ],
        "resources": {
            "requests": {"cpu": wanted["cpu"], "memory": wanted["memory"]},
            "limits": limits,
        },
        "volumeMounts": [
            {"name": "state", "mountPath": STATE},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
    }
    # Each node's own disk: what the nodes share is `placement.storage`.
    volumes = [
        {"name": "state", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}},
    ]
    return {"enableServiceLinks": False, "containers": [container], "volumes": volumes}
