"""Start of a sandbox's worker in a container of Docker or Podman.

The worker travels as an argument, so that nothing of this machine is mounted, and the daemon may be
on another one. As process 1 of its container it ends it.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import uuid
from functools import lru_cache
from pathlib import Path

from rl_core.envs.tools.bubblewrap import ENVIRONMENT, NOBODY, WRITABLE_BYTES, kill_tree
from rl_core.envs.tools.workers import sandbox_worker
from rl_core.errors import MachineLacks

PULL_TIMEOUT_S = 600.0
"""Seconds for the first container, whose image may have to be pulled."""
GRACE_S, KILL_TIMEOUT_S = 2.0, 20.0
OWN_FAILURE = 125
"""Exit code of the client when Docker or Podman failed, rather than what runs in the container."""
EXTRA_BYTES = 512 * 2**20
"""Memory of a container beside that of the program: the worker and what is in `/tmp`."""


def start(
    program: str, image: str, memory_bytes: int, threads: int
) -> tuple[subprocess.Popen[bytes], str]:
    """Start a worker in a new container. Returns: the client's process, and the container's name.

    Raises: MachineLacks when the program is not installed.
    """
    name = f"rl-train-{uuid.uuid4().hex[:16]}"
    source = Path(sandbox_worker.__file__).read_text(encoding="utf-8")
    limits = ["--memory", str(memory_bytes + EXTRA_BYTES), "--pids-limit", str(threads + 8)]
    process = subprocess.Popen(
        [*_command(program, name), *limits, image, "python3", "-B", "-X", "utf8", "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    return process, name


def start_shell(program: str, image: str, source: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a program of a new container's python3, which may write what the image lets it.

    Returns: the client's process, and the container's name. Raises: MachineLacks when the program
    is not installed.
    """
    name = f"rl-train-{uuid.uuid4().hex[:16]}"
    options = ["run", "--rm", "--interactive", "--name", name, "--network", "none"]
    options += ["--security-opt", "no-new-privileges", "--pids-limit", "512", "--memory", "4g"]
    process = subprocess.Popen(
        [_found(program), *options, image, "python3", "-B", "-X", "utf8", "-c", source],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    return process, name


def build(program: str, folder: Path) -> str:
    """Return the image that a folder's Dockerfile describes, built once for its content.

    Raises: MachineLacks with the last lines that the build said.
    """
    digest = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            digest.update(f"{file.relative_to(folder)} ".encode() + file.read_bytes())
    tag = f"rl-train-task:{digest.hexdigest()[:16]}"
    known = subprocess.run([_found(program), "image", "inspect", tag], capture_output=True)
    if known.returncode:
        said = subprocess.run(
            [_found(program), "build", "--tag", tag, str(folder)], capture_output=True, text=True
        )
        if said.returncode:
            told = " ".join(said.stderr.strip().splitlines()[-3:])
            raise MachineLacks(f"{folder}/Dockerfile: {program} cannot build it: {told}")
    return tag


def end(process: subprocess.Popen[bytes], container: tuple[str, str] | None) -> None:
    """Wait for the end of a sandbox whose requests have ended, and kill it if it stays: its worker
    ends with them, and as process 1 takes the rest along.

    Args: container: program and name of the container; None under bubblewrap.
    """
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        if container is not None:
            subprocess.run(
                [container[0], "kill", container[1]], capture_output=True, timeout=KILL_TIMEOUT_S
            )
        kill_tree(process.pid)
        process.wait()


def require_program(program: str) -> None:
    """Check that Docker or Podman answers. Raises: MachineLacks with its own reason when it does
    not."""
    said = subprocess.run([_found(program), "version"], capture_output=True, text=True)
    if said.returncode:
        told = said.stderr.strip().splitlines()
        raise MachineLacks(
            f"sandbox: {program} does not answer here: {(told or ['it said nothing'])[-1][:500]}; "
            "start its daemon, or say `sandbox: bubblewrap`"
        )


@lru_cache(maxsize=8)
def require(program: str, image: str) -> None:
    """Check that containers of an image run here. Raises: MachineLacks with the program's own
    reason when they do not."""
    command = _command(program, f"rl-train-{uuid.uuid4().hex[:16]}")
    try:
        said = subprocess.run(
            [*command, image, "python3", "-c", "print('ready')"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PULL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise MachineLacks(f"sandbox: {program} cannot run {image} here: {error}") from error
    if said.stdout.strip() != b"ready":
        told = said.stderr.decode(errors="replace").strip().splitlines()
        reason = told[0][:500] if told else ""
        raise MachineLacks(
            f"sandbox: {program} cannot run {image} here: {reason or 'it printed nothing'}; start "
            "its daemon, name an image with python3, or say `sandbox: bubblewrap`"
        )


def _command(program: str, name: str) -> list[str]:
    options = [
        _found(program),
        "run",
        "--rm",
        "--interactive",
        "--name",
        name,
        "--hostname",
        "sandbox",
    ]
    options += ["--network", "none", "--read-only", "--cap-drop", "ALL"]
    options += ["--security-opt", "no-new-privileges", "--user", f"{NOBODY}:{NOBODY}"]
    options += ["--tmpfs", f"/tmp:rw,nosuid,nodev,mode=1777,size={WRITABLE_BYTES}"]
    options += ["--workdir", "/tmp"]
    for key, value in ENVIRONMENT.items():
        options += ["--env", f"{key}={value}"]
    return options


def _found(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise MachineLacks(
            f"sandbox: there is no program {program} on this machine; install it, or say `sandbox: "
            "bubblewrap`"
        )
    return found
