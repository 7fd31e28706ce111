"""Interpreters of other environments: packages whose pins clash with ours run in one of their
own."""

from __future__ import annotations

import os
import sys
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
PROGRAMS = "rl_core.rollout.agents.programs"
"""Package of the programs that run there; they import nothing of this project but each other."""


def interpreter_with(package: str, python: str) -> str:
    """Return the absolute path of an interpreter that should have a package.

    Args: python: a path; a relative one starts at the project's folder. Raises: ValueError when
    there is no such file, with the command that builds the environment.
    """
    path = PROJECT / Path(python).expanduser()
    if not os.access(path, os.X_OK) or path.is_dir():
        raise ValueError(
            f"there is no interpreter {path}; `make .venv-{package}/.installed` builds an "
            f"environment with {package}, or name one that has it"
        )
    # Not resolved: a virtual environment's interpreter is a link, and finds its packages by it.
    return os.path.abspath(path)


def module_paths(elsewhere: bool) -> list[str]:
    """Return the folders of modules that an agent may import from. Args: elsewhere: for another
    interpreter, which has packages of its own."""
    paths = [os.path.abspath(path) for path in ["", *sys.path]]
    if elsewhere:
        own = tuple({sys.prefix, sys.base_prefix})
        paths = [path for path in paths if not path.startswith(own)]
    return list(dict.fromkeys([*paths, str(PROJECT)]))
