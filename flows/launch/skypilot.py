"""A task for SkyPilot, which runs the same commands on every machine and tells each its rank."""

from __future__ import annotations

import yaml

from flows.launch.job import RAY_PORT, Job

RUN = """\
set -euo pipefail
source .venv/bin/activate
address=${{SKYPILOT_NODE_IPS%%$'\\n'*}}
# SkyPilot has a Ray of its own on 6380; this one is the run's.
if [ "$SKYPILOT_NODE_RANK" -ne 0 ]; then
    until (exec 3<>"/dev/tcp/$address/{port}") 2>/dev/null; do sleep 5; done
    # It ends with the head, by an error; the head's exit code is the job's.
    ray start --address="$address:{port}" {devices} --block || true
    exit 0
fi
ray start --head --node-ip-address="$address" --port={port} {devices} --include-dashboard=false
status=0
{command} || status=$?
ray stop
exit "$status"
"""


def task(job: Job, accelerator: str) -> str:
    """Return the task of a job, to be launched in the project's folder. Args: accelerator: name of
    the GPU, as SkyPilot calls it."""
    devices = f"--num-gpus={job.gpus}" if job.gpus else f"--num-cpus={job.devices} --num-gpus=0"
    run = RUN.format(port=RAY_PORT, devices=devices, command=job.command(f'"$address:{RAY_PORT}"'))
    resources: dict[str, object] = {"use_spot": False}
    if job.gpus:
        resources["accelerators"] = f"{accelerator}:{job.gpus}"
    else:
        resources["cpus"] = f"{job.devices}+"
    values = {
        "name": job.name,
        "num_nodes": job.nodes,
        "resources": resources,
        "workdir": ".",
        # Every node asks the others for the same token: `sky launch --secret RAY_AUTH_TOKEN`.
        "envs": {"RAY_AUTH_MODE": "token"},
        "secrets": {"RAY_AUTH_TOKEN": None},
        "setup": "make install\n",
        "run": run,
    }
    return yaml.safe_dump(values, sort_keys=False, width=1000, default_style=None)
