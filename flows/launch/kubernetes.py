"""A RayJob for KubeRay (1.1 or newer): a Ray cluster that lives as long as the run."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import yaml

from flows.launch.job import Job
from rl_core.errors import StorageError
from rl_core.runtime.storage import SCHEMES, scheme_of

STATE = "/state"


def manifest(job: Job, image: str, namespace: str) -> str:
    """Return the manifest of a job. Args: image: of `deployments/Dockerfile`, in a registry.

    Raises: StorageError for a job without an object store: the disks of its pods go with it.
    """
    if scheme_of(job.storage or "") not in SCHEMES:
        raise StorageError(
            f"--storage: {job.storage or 'none'}, but a RayJob's pods have no other disk than "
            "their own, which goes with them; give s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"
        )
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
                    "template": {"spec": _pod("ray-head", image, {"cpu": "4", "memory": "16Gi"})},
                },
                "workerGroupSpecs": [
                    {
                        "groupName": "workers",
                        "replicas": job.nodes,
                        "minReplicas": job.nodes,
                        "maxReplicas": job.nodes,
                        "rayStartParams": {} if job.gpus else {"num-cpus": str(job.devices)},
                        "template": {"spec": _pod("ray-worker", image, _worker_resources(job))},
                    }
                ],
            },
        },
    }
    return yaml.safe_dump(values, sort_keys=False, width=1000)


def _worker_resources(job: Job) -> dict[str, str]:
    if job.gpus:
        return {"cpu": str(4 * job.gpus), "memory": f"{32 * job.gpus}Gi", "gpu": str(job.gpus)}
    return {"cpu": str(job.devices), "memory": f"{4 * job.devices}Gi"}


def _pod(name: str, image: str, wanted: dict[str, str]) -> dict[str, Any]:
    limits = {"memory": wanted["memory"]}
    if "gpu" in wanted:
        limits["nvidia.com/gpu"] = wanted["gpu"]
    container = {
        "name": name,
        "image": image,
        "env": [
            {"name": "RL_TRAIN_HOME", "value": STATE},
            {"name": "RAY_worker_niceness", "value": "0"},
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
