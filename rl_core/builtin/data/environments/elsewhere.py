"""Tasks that are read by a program in another interpreter, which has the environment's package."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping

from rl_core.envs.others.interpreters import PROGRAMS, PROJECT, module_paths
from rl_core.errors import DataError

_ROWS_MAIN = PROJECT / "rl_core" / "rollout" / "agents" / "programs" / "rows_main.py"


def told_by(
    python: str, program: str, settings: Mapping[str, object], source: str
) -> Iterator[dict[str, object]]:
    """Yield what a program in another interpreter tells."""
    order = {
        "path": module_paths(True),
        "program": f"{PROGRAMS}.{program}",
        "settings": dict(settings),
    }
    told = subprocess.run(
        [python, "-P", str(_ROWS_MAIN)],
        input=json.dumps(order, default=str),
        capture_output=True,
        text=True,
    )
    for line in told.stdout.splitlines():
        row = json.loads(line)
        if "error" in row:
            raise DataError(f"{source}: its tasks cannot be read: {row['error']}")
        yield row
    if told.returncode:
        raise DataError(
            f"{source}: its tasks cannot be read: {python} ended with {told.returncode}: "
            f"{told.stderr.strip()[-300:]}"
        )
