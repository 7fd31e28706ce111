"""The runs of a home, and the one that a person names: one way for every command that takes RUN."""

from __future__ import annotations

from rl_core.errors import StorageError
from rl_core.runs.run_folder import RunFolder
from rl_core.runtime.home import Home
from rl_core.runtime.registry import nearest

LISTED = 8
"""Candidates that an error names; of more it gives the number."""


def known_runs(home: Home) -> dict[str, RunFolder]:
    """Return every run that was opened in this home, by the name of its folder, the newest
    first."""
    opened = [(path.stat().st_mtime, path.parent) for path in home.runs.glob("*/run.json")]
    folders = [folder for _, folder in sorted(opened, reverse=True)]
    return {folder.name: RunFolder(folder) for folder in folders}


def find_folder(home: Home, run: str) -> RunFolder:
    """Find the one run that is meant.

    Args: run: the name of its folder, `RECIPE-DIGITS`; else the name of its recipe; else that name
    and the first of the digits; else its MLflow run id. Raises: StorageError naming the candidates
    if there are several, or the nearest known run if there is none.
    """
    known = known_runs(home)
    if run in known:
        return known[run]
    meant = [name for name in known if name.rpartition("-")[0] == run]
    if not meant:
        # With a digit at least: `text` is not the start of a run of `text-dpo`.
        for name in known:
            recipe = name.rpartition("-")[0]
            if name.startswith(run) and len(run) > len(f"{recipe}-"):
                meant.append(name)
    if not meant:
        meant = [name for name, folder in known.items() if folder.mlflow_run_id == run]
    if not meant:
        raise StorageError(f"no run {run!r} under {home.runs}{nearest(run, sorted(known))}")
    if len(meant) > 1:
        shown = ", ".join(meant[:LISTED])
        more = f" and {len(meant) - LISTED} older ones" if len(meant) > LISTED else ""
        raise StorageError(
            f"{run!r} may be any of {len(meant)} runs under {home.runs}, the newest first: "
            f"{shown}{more}; give more of the name"
        )
    return known[meant[0]]
