"""Compose and Kubernetes files: well formed, and in agreement with each other and with the code.
Nothing is started."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_core.services.catalogue import WORK_POOLS

FOLDER = Path(__file__).parents[2] / "deployments"
KUBERNETES = FOLDER / "k8s"
POOLS = {pool.name for pool in WORK_POOLS}


def resources() -> list[dict[str, Any]]:
    names = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    return [one for name in names for one in yaml.safe_load_all((KUBERNETES / name).read_text())]


def named(kind: str) -> set[str]:
    return {one["metadata"]["name"] for one in resources() if one["kind"] == kind}


def inside(value: Any, key: str) -> Iterator[Any]:
    """Every value that stands under `key`, however deep."""
    if isinstance(value, dict):
        for name, entry in value.items():
            if name == key:
                yield entry
            yield from inside(entry, key)
    elif isinstance(value, list):
        for entry in value:
            yield from inside(entry, key)


def compose() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())


def test_every_file_of_the_folder_is_applied():
    listed = set(yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"])
    assert {path.name for path in KUBERNETES.glob("*.yaml")} == listed | {"kustomization.yaml"}


def test_what_kubernetes_resources_refer_to_is_there():
    everything = resources()
    template = json.loads((KUBERNETES / "light-pool.json").read_text())["job_configuration"][
        "job_manifest"
    ]
    claims = {one["claimName"] for one in inside([everything, template], "persistentVolumeClaim")}
    assert claims <= named("PersistentVolumeClaim")
    assert {one["name"] for one in inside([everything, template], "configMapRef")} <= named(
        "ConfigMap"
    )
    assert {one["name"] for one in inside(everything, "configMap")} <= named("ConfigMap")
    assert set(inside(everything, "serviceAccountName")) <= named("ServiceAccount")
    secrets = {(one["name"], one["key"]) for one in inside(everything, "secretKeyRef")}
    for name, key in secrets:
        assert re.search(
            rf"secret generic {name} .*--from-literal={key}=",
            (KUBERNETES / "README.md").read_text(),
        )


def test_clients_ask_services_where_they_listen():
    ports = {
        one["metadata"]["name"]: one["spec"]["ports"][0]["port"]
        for one in resources()
        if one["kind"] == "Service"
    }
    (clients,) = [one["data"] for one in resources() if one["metadata"]["name"] == "clients"]
    urls = [clients["PREFECT_API_URL"], clients["MLFLOW_TRACKING_URI"]]
    urls += [url for url in re.findall(r"//[^@\s]+@[\w:]+", json.dumps(resources()))]
    asked = [re.search(r"(?:@|//)(\w+):(\d+)$", url.removesuffix("/api")) for url in urls]
    assert len(asked) == 4
    for found in asked:
        assert found is not None and ports[found[1]] == int(found[2])
    for one in resources():
        if one["kind"] in ("Deployment", "StatefulSet") and one["metadata"]["name"] in ports:
            (opened,) = inside(one, "containerPort")
            assert opened == ports[one["metadata"]["name"]]


def test_every_service_finds_its_pods():
    labels = [
        one["spec"]["template"]["metadata"]["labels"]
        for one in resources()
        if "template" in one.get("spec", {})
    ]
    for one in resources():
        if one["kind"] == "Service":
            assert one["spec"]["selector"] in labels


@pytest.mark.parametrize("text", ["compose", "k8s"])
def test_a_worker_serves_each_pool_of_the_code(text: str):
    served = json.dumps(compose() if text == "compose" else resources())
    words = re.sub(r"[\",\s]+", " ", served.replace("\\n", " "))
    assert set(re.findall(r"--pool ([\w-]+)", words)) == POOLS


def test_the_pool_of_jobs_knows_every_variable_that_it_uses():
    pool = json.loads((KUBERNETES / "light-pool.json").read_text())
    used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(pool["job_configuration"])))
    assert used == set(pool["variables"]["properties"])


def test_ray_is_the_one_of_the_constraints():
    (cluster,) = [one for one in resources() if one["kind"] == "RayCluster"]
    pinned = re.search(
        r"^ray==(.+)$", (FOLDER.parent / "constraints.txt").read_text(), re.MULTILINE
    )
    assert pinned is not None and cluster["spec"]["rayVersion"] == pinned[1]


def test_compose_publishes_to_this_machine_alone_and_waits_for_what_it_needs():
    services = compose()["services"]
    assert [
        port
        for one in services.values()
        for port in one.get("ports", ())
        if not port.startswith("127.0.0.1:")
    ] == []
    for one in services.values():
        for name, wanted in one.get("depends_on", {}).items():
            assert name in services
            if wanted["condition"] == "service_healthy":
                assert "healthcheck" in services[name]
        for volume in one.get("volumes", ()):
            source = volume.partition(":")[0]
            assert (
                (FOLDER / source).is_file()
                if source.startswith(".")
                else source in compose()["volumes"]
            )


def test_passwords_come_from_outside():
    example = (FOLDER / "example.env").read_text()
    variables = set(re.findall(r"\$\{(\w+)", (FOLDER / "compose.yaml").read_text())) - {
        "RL_TRAIN_IMAGE"
    }
    assert variables == set(re.findall(r"^(\w+)=$", example, re.MULTILINE))
