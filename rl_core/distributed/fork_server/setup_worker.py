"""In place of Ray's script of this name, which imports Ray for each worker (half a processor
second) to read one argument: hands the command line on to `client.py`. Workers of any other kind
get Ray's script.

Usage: setup_worker.py [-s] [-S] SCRIPT [ARGUMENT...]
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

CLIENT = str(Path(__file__).with_name("client.py"))


def main(arguments: list[str]) -> None:
    """Become what the runtime environment among Ray's arguments asks for."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--serialized-runtime-env-context", default="{}")
    parser.add_argument("--language", default="")
    known, passed_on = parser.parse_known_args(arguments)
    asked = {
        key: value
        for key, value in json.loads(known.serialized_runtime_env_context).items()
        if value
    }
    command = shlex.split(asked.get("py_executable", ""))
    if asked.keys() == {"py_executable"} and CLIENT in command and known.language == "PYTHON":
        os.execv(command[0], [*command, *passed_on])
    os.execv(sys.executable, [sys.executable, rays_own(), *arguments])


def rays_own() -> str:
    """Path of the script that Ray would have started."""
    ray = find_spec("ray")
    assert ray is not None and ray.origin is not None
    return str(Path(ray.origin).parent / "_private" / "workers" / "setup_worker.py")


if __name__ == "__main__":
    main(sys.argv[1:])
