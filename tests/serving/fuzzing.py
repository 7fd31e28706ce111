"""Requests made from the endpoint's OpenAPI document by schemathesis, in an environment of its own.

Only the standard library is imported here: an agent's process runs it too.
"""

import os
import subprocess
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parents[2]
SCHEMATHESIS = PROJECT / ".venv-schemathesis" / "bin" / "schemathesis"
SEED = "1"


def fuzz(url: str, key: str, examples: int, checks: str) -> str:
    """Send good and bad requests. Args: url: without `/v1`. Returns: what schemathesis printed,
    with its exit code in the last line."""
    with tempfile.TemporaryDirectory() as folder:
        told = subprocess.run(
            [
                *(str(SCHEMATHESIS), "run", f"{url}/openapi.json", "--checks", checks),
                *("--max-examples", str(examples), "--seed", SEED, "--no-shrink"),
                *("--phases", "examples,coverage,fuzzing", "--suppress-health-check", "all"),
                *("--header", f"Authorization: Bearer {key}", "--request-timeout", "60"),
                *("--warnings", "off", "--continue-on-failure"),
            ],
            cwd=folder,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
    return f"{told.stdout}\n{told.returncode}"
