"""Program inside a sandbox that runs shell commands for as long as its requests come. Standard
library only.

It is the sandbox's process 1. A request is a line of JSON, and so is an answer: `{"write": path,
"data": base64, "mode": number}`, `{"read": path}`, `{"empty": path}`, `{"end_others": true}`, or
`{"run": command, "cwd", "env", "timeout_s", "output_bytes"}`. What a command prints is its own
word; the other answers are this program's, which commands can neither read, trace nor signal.
"""

import base64
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from typing import Any

MEMORY_BYTES, FILE_BYTES, PROCESSES = 4 * 2**30, 256 * 2**20, 256
LIMITED = f'ulimit -c 0 -v {MEMORY_BYTES // 1024} -f {FILE_BYTES // 1024}; exec bash -c "$0"'
LOOK_S, COUNT_S = 0.01, 0.05
PR_SET_DUMPABLE = 4


def main() -> None:
    """Answer requests until they end; everything in the sandbox ends with this process."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    # Process 1 is immune to signals it does not handle; Python would handle this one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Commands have the same user, and would reach the requests and answers in /proc/1/fd.
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
    threading.Thread(target=watch, daemon=True).start()
    for line in requests:
        data = (json.dumps(answered(json.loads(line))) + "\n").encode()
        while data:
            data = data[os.write(answers, data) :]


def answered(request: dict[str, Any]) -> dict[str, object]:
    """Return the answer to a request, or what went wrong."""
    try:
        if "run" in request:
            return run(request)
        if "read" in request:
            if not os.path.lexists(request["read"]):
                return {"data": None}
            with open(request["read"], "rb") as file:
                return {"data": base64.b64encode(file.read(FILE_BYTES)).decode()}
        if "empty" in request:
            empty(request["empty"])
            return {}
        if "write" in request:
            os.makedirs(os.path.dirname(request["write"]), exist_ok=True)
            with open(request["write"], "wb") as file:
                file.write(base64.b64decode(request["data"]))
            os.chmod(request["write"], request["mode"])
            return {}
        if os.getpid() != 1:
            return {
                "error": "the shell is not process 1 of its sandbox, so what commands left running "
                "cannot be ended; the image's entrypoint must `exec` what it is given"
            }
        end_others()
        return {}
    except OSError as error:
        return {"error": f"{type(error).__name__}: {error}"}


def empty(folder: str) -> None:
    """Leave a folder there without anything in it, whatever commands put in its place, or took
    from themselves."""
    if os.path.islink(folder) or not os.path.isdir(folder):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder)
        os.makedirs(folder)
    os.chmod(folder, 0o755)
    with os.scandir(folder) as inside:
        found = list(inside)
    for one in found:
        if one.is_dir(follow_symlinks=False):
            empty(one.path)
            os.rmdir(one.path)
        else:
            os.unlink(one.path)


def watch() -> None:
    """End everything else when there are too many processes: the kernel counts none of root's, as
    whom a sandbox may have to run."""
    while True:
        if sum(name.isdigit() for name in os.listdir("/proc")) > PROCESSES:
            end_others()
        time.sleep(COUNT_S)


def end_others() -> None:
    """End every other process of the sandbox."""
    if os.getpid() == 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)


def run(request: dict[str, Any]) -> dict[str, object]:
    """Run a command, with a deadline. Its output goes to a file, since what it leaves in the
    background may hold a pipe open."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            ["bash", "-c", LIMITED, request["run"]],
            cwd=request["cwd"] or None,
            env={**os.environ, **request["env"]},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        deadline, timed_out = time.monotonic() + request["timeout_s"], False
        while process.poll() is None:
            if time.monotonic() > deadline:
                timed_out = True
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                break
            time.sleep(LOOK_S)
        said = os.pread(output.fileno(), request["output_bytes"], 0)
    code = process.returncode
    return {"code": code, "output": base64.b64encode(said).decode(), "timed_out": timed_out}


if __name__ == "__main__":
    main()
