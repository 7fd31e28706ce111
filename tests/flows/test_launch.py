"""`rl-train launch` writes what schedulers take: shell that parses and runs, manifests that fit
KubeRay's schema."""

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app

SCHEMAS = Path(__file__).parents[1] / "services" / "kuberay-schemas.json.gz"
FAKES = {
    "scontrol": 'printf "one\\ntwo\\n"',
    "srun": 'until [[ "$1" =~ ^(ray|hostname|rl-train)$ ]]; do shift; done; exec "$@"',
    "hostname": 'echo "10.0.0.1 fe80::1"',
    "ray": 'echo "ray $*" >>"$LOG"; case "$1" in start) sleep 3;; esac',
    "rl-train": 'echo "rl-train $*" >>"$LOG"; exit "${CODE:-0}"',
}


def written(*arguments: str) -> str:
    answer = CliRunner().invoke(app, ["launch", *arguments])
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def fitting(kind: str, values: dict[str, Any]) -> None:
    """Hold a resource to KubeRay's schema, in which nothing unknown may stand."""

    def strict(node: Any) -> Any:
        if isinstance(node, list):
            return [strict(one) for one in node]
        if not isinstance(node, dict):
            return node
        made = {key: strict(one) for key, one in node.items()}
        if isinstance(node.get("properties"), dict) and node.get("type") == "object":
            made.setdefault("additionalProperties", False)
        if node.get("x-kubernetes-preserve-unknown-fields"):
            made.pop("additionalProperties", None)
        if node.get("x-kubernetes-int-or-string"):
            made.pop("type", None)
        return made

    schema = strict(json.loads(gzip.decompress(SCHEMAS.read_bytes()))[kind])
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.Draft7Validator(schema).validate(values)


def test_the_shipped_ray_cluster_fits_kuberays_schema():
    path = Path(__file__).parents[2] / "deployments" / "k8s" / "ray-cluster.yaml"
    values = yaml.safe_load(path.read_text())
    fitting("RayCluster", values)
    values["spec"]["headGroupSpec"]["rayStartParam"] = {}
    with pytest.raises(jsonschema.ValidationError, match="rayStartParam"):
        fitting("RayCluster", values)


def test_a_ray_job_fits_kuberays_schema_and_runs_the_recipe():
    text = written(
        *("k8s", "text", "seed=3", "--nodes", "2", "--devices", "4"),
        *("--storage", "s3://bucket/runs", "--image", "registry/rl-train:1"),
    )
    values = yaml.safe_load(text)
    fitting("RayJob", values)
    entry = values["spec"]["entrypoint"]
    assert "placement.num_devices=8" in entry and "placement.storage=s3://bucket/runs" in entry
    assert entry.endswith("seed=3 placement.ray_address=auto")
    (group,) = values["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    assert (group["replicas"], container["resources"]["limits"]["nvidia.com/gpu"]) == (2, "4")


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_batch_script_parses_and_starts_ray_and_the_run(tmp_path: Path, nodes: str):
    script = tmp_path / "job.sh"
    written(
        *("slurm", "text", "--nodes", nodes, "--devices", "4", "--cpu"),
        *("--storage", "s3://bucket/it's here", "--out", str(script)),
    )
    subprocess.run(["bash", "-n", str(script)], check=True)
    for name, body in FAKES.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log), "CODE": "7"}
    done = subprocess.run(
        ["bash", str(script)], env={**env, "SLURM_JOB_NODELIST": "n[1-2]"}, timeout=60, check=False
    )
    assert done.returncode == 7, "the run's exit code is the job's"
    lines = log.read_text().splitlines()
    assert f"#SBATCH --nodes={nodes}" in script.read_text()
    starts = sorted(line for line in lines if line.startswith("ray start"))[::-1]
    assert "--head --node-ip-address=10.0.0.1 --port=6379 --num-cpus=4" in starts[0]
    assert [" --address=10.0.0.1:6379" in line for line in starts[1:]] == [True] * (len(starts) - 1)
    assert len(starts) == int(nodes)
    (run,) = [line for line in lines if line.startswith("rl-train")]
    assert run.startswith("rl-train run text placement.device=cpu")
    assert "placement.storage=s3://bucket/it's here" in run
    assert run.endswith("placement.ray_address=10.0.0.1:6379")


def test_a_sky_task_names_machines_and_its_shell_parses(tmp_path: Path):
    values = yaml.safe_load(written("skypilot", "text", "--nodes", "2", "--devices", "4"))
    assert values["num_nodes"] == 2 and values["resources"]["accelerators"] == "H100:4"
    subprocess.run(["bash", "-n"], input=values["run"].encode(), check=True)
    address = values["run"].splitlines()[2]
    said = subprocess.run(
        ["bash", "-c", f'{address}; echo "$address"'],
        env={"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout == "10.0.0.1\n"


def test_a_recipe_that_would_be_refused_there_is_refused_here():
    from rl_core.errors import RecipeError

    answer = CliRunner().invoke(app, ["launch", "slurm", "text", "--nodes", "3"])
    assert isinstance(answer.exception, RecipeError)
    assert "prompts_per_step" in str(answer.exception)


def test_a_ray_job_says_that_its_metrics_go_with_it_unless_they_are_elsewhere():
    where = ("launch", "k8s", "text", "--devices", "4", "--storage", "s3://bucket/runs")
    answer = CliRunner().invoke(app, where)
    assert "its registered version are on the head's own disk" in answer.stderr
    answer = CliRunner().invoke(app, [*where, "--mlflow", "http://mlflow:5000"])
    assert answer.stderr == ""
    cluster = yaml.safe_load(answer.stdout)["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": "MLFLOW_TRACKING_URI", "value": "http://mlflow:5000"} in container["env"]


def test_a_ray_job_that_would_keep_nothing_is_refused():
    from rl_core.errors import StorageError

    answer = CliRunner().invoke(app, ["launch", "k8s", "text", "--storage", "/runs"])
    assert isinstance(answer.exception, StorageError)
    assert str(answer.exception).startswith("--storage: /runs, but a RayJob's pods")
