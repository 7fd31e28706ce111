"""A batch script for Slurm: Ray on every machine of the allocation, the run on the first."""

from __future__ import annotations

from flows.launch.job import RAY_PORT, Job

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --output=%x-%j.log
#SBATCH --signal=B:TERM@120
{gpus}
# Submit it in the folder of the recipe, with the environment of rl-train in PATH on every machine.
set -euo pipefail

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${{hosts[0]}}
address=$(srun --overlap --nodes=1 --ntasks=1 -w "$head" hostname -I | awk '{{print $1}}')
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
export RAY_AUTH_TOKEN

srun --overlap --nodes=1 --ntasks=1 -w "$head" \\
    ray start --head --node-ip-address="$address" --port={port} {devices} \\
    --include-dashboard=false --block &
until srun --overlap --nodes=1 --ntasks=1 -w "$head" \\
    ray status --address="$address:{port}" >/dev/null 2>&1; do sleep 2; done
{others}
# When the time is nearly up the run ends in order; the same script goes on from there.
srun --overlap --nodes=1 --ntasks=1 -w "$head" \\
    {command} &
run=$!
trap 'kill -TERM "$run"' TERM
status=0
wait "$run" || status=$?
while kill -0 "$run" 2>/dev/null; do wait "$run" || status=$?; done
exit "$status"
"""
OTHERS = """\
srun --overlap --nodes={others} --ntasks={others} --exclude="$head" \\
    ray start --address="$address:{port}" {devices} --block &
"""


def script(job: Job) -> str:
    """Return the batch script of a job."""
    devices = f"--num-gpus={job.gpus}" if job.gpus else f"--num-cpus={job.devices} --num-gpus=0"
    others = ""
    if job.nodes > 1:
        others = OTHERS.format(others=job.nodes - 1, port=RAY_PORT, devices=devices)
    return SCRIPT.format(
        name=job.name,
        nodes=job.nodes,
        gpus=f"#SBATCH --gpus-per-node={job.gpus}" if job.gpus else "",
        port=RAY_PORT,
        devices=devices,
        others=others,
        command=job.command(f'"$address:{RAY_PORT}"'),
    )
