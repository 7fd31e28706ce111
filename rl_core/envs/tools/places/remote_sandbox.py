"""Programs on a server with SandboxFusion's API (`POST /run_code`), one request a test.

The worker of the local sandboxes travels along as a file and runs the test in the server's own
process; it is the server that isolates and limits. What it answers is the program's word, as
everywhere.
"""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path
from typing import Any

import httpx

from rl_core.envs.tools.execution import Call, Execution, Outcome
from rl_core.envs.tools.workers import remote_main, sandbox_worker
from rl_core.errors import EnvError, MachineLacks
from rl_core.runtime.secrets import redact

PAUSES_S = (0.5, 2.0, 0.0)
"""Pauses after each failed attempt; the last is given up."""
ANSWER_TIMEOUT_S = 60.0
"""Seconds after a test's own deadline for the server's answer, its queue included."""


class RemoteProgram:
    """One program for a server. Args: address: of the server. output_bytes: most of each output.
    memory_bytes: of a test."""

    is_alive = True

    def __init__(self, address: str, memory_bytes: int, output_bytes: int) -> None:
        self.address, self.memory_bytes, self.output_bytes = address, memory_bytes, output_bytes
        self._source = ""
        self._http = httpx.Client(trust_env=False, follow_redirects=False)

    def load(self, source: str) -> None:
        """Keep the program, which travels with each test."""
        self._source = source

    def run(
        self,
        *,
        timeout_s: float,
        stdin: str = "",
        call: Call | None = None,
        call_bare: bool = False,
    ) -> Execution:
        """Run the program once, as a `Sandbox` does. Raises: EnvError when the server does not
        answer, or says that it failed itself."""
        asked = {"name": call.name, "arguments": list(call.arguments)} if call else None
        job = {"source": self._source, "stdin": stdin, "call": asked, "call_bare": call_bare}
        files = {
            "sandbox_worker.py": Path(sandbox_worker.__file__).read_bytes(),
            remote_main.JOB: json.dumps(job).encode(),
        }
        answer = self._asked(
            {
                "code": Path(remote_main.__file__).read_text(encoding="utf-8"),
                "language": "python",
                "run_timeout": timeout_s,
                "memory_limit_MB": self.memory_bytes // 2**20,
                "files": {name: base64.b64encode(data).decode() for name, data in files.items()},
                "fetch_files": [remote_main.RESULT],
            },
            timeout_s,
        )
        return self._execution(answer)

    def __enter__(self) -> RemoteProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _asked(self, body: dict[str, object], timeout_s: float) -> dict[str, Any]:
        why = ""
        for pause_s in PAUSES_S:
            try:
                said = self._http.post(
                    f"{self.address}/run_code", json=body, timeout=timeout_s + ANSWER_TIMEOUT_S
                )
                answer = said.json() if said.status_code == httpx.codes.OK else None
            except (httpx.HTTPError, ValueError) as error:
                why = f"{type(error).__name__}: {error}"
            else:
                if isinstance(answer, dict) and _has_run(answer):
                    return answer
                why = redact((f"{said.status_code}: {said.text}").strip()[:300])
            time.sleep(pause_s)
        raise EnvError(f"sandbox: the server {self.address} ran no program: {why}")

    def _execution(self, answer: dict[str, Any]) -> Execution:
        ran = answer["run_result"]
        limit = self.output_bytes
        stdout, stderr = (
            str(ran.get(name) or "").encode("utf-8", "surrogatepass")[:limit]
            for name in ("stdout", "stderr")
        )
        result = base64.b64decode((answer.get("files") or {}).get(remote_main.RESULT) or "")[:limit]
        if ran.get("status") == "TimeLimitExceeded":
            outcome = Outcome.TIMEOUT
        elif limit in (len(stdout), len(stderr), len(result)):
            outcome = Outcome.OUTPUT_LIMIT
        elif answer["status"] == "Success":
            outcome = Outcome.FINISHED
        else:
            outcome = Outcome.FAILED
        return Execution(outcome, stdout, stderr, result, float(ran.get("execution_time") or 0.0))


def _has_run(answer: dict[str, Any]) -> bool:
    """Return True if an answer is about the program; one without a run is the server's failure."""
    ran = answer.get("run_result")
    return (
        answer.get("status") in ("Success", "Failed")
        and isinstance(ran, dict)
        and ran.get("status") in ("Finished", "TimeLimitExceeded")
    )


def require(address: str) -> None:
    """Check that a server runs programs. Raises: MachineLacks with its reason when it does not."""
    with RemoteProgram(address, 2**28, 2**16) as program:
        program.load("print('ready')")
        try:
            ran = program.run(timeout_s=30.0)
        except EnvError as error:
            raise MachineLacks(str(error)) from error
    if ran.stdout.strip() != b"ready":
        told = ran.stderr.decode(errors="replace")[-300:]
        raise MachineLacks(
            f"sandbox: the server {address} did not print what it should: {told or ran.outcome}"
        )
