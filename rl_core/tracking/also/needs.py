"""Packages and keys of the trackers next to MLflow, asked for before a run spends anything."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec

from rl_core.errors import RecipeError
from schemas.sections.tracking import Tracker

_LOCAL = ("offline", "dryrun", "disabled")
_KEYS = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")
_HOST = "https://api.wandb.ai"


def check_trackers(also: Sequence[Tracker]) -> None:
    """Check that the packages of the trackers are installed, and that wandb knows its user.

    Raises: RecipeError with the line that installs a missing one.
    """
    for tracker in also:
        if find_spec(tracker) is None:
            raise RecipeError(
                f"tracking.also: {tracker} is not installed; run "
                f"pip install -c constraints.txt -e '.[{tracker}]', or leave it out"
            )
    if Tracker.WANDB in also and not _wandb_can_start():
        raise RecipeError(
            "tracking.also: wandb has no API key: set WANDB_API_KEY, run wandb login, or set "
            "WANDB_MODE=offline to keep its records in the run's folder"
        )


def _wandb_can_start() -> bool:
    """Return True if wandb sends nothing, or has a key; without one it would ask at the terminal
    in the middle of a run."""
    if os.environ.get("WANDB_MODE") in _LOCAL or any(map(os.environ.get, _KEYS)):
        return True
    from requests.utils import get_netrc_auth

    return get_netrc_auth(os.environ.get("WANDB_BASE_URL", _HOST)) is not None
