"""A deployment of a user's own recipe, beside those that `prefect.yaml` names."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from rl_core.errors import RecipeError
from rl_core.runtime.settings_files import DEPLOYMENTS

FLOW = "flows/rl_train.py:rl_train"
POOL = "rl-train"
"""Work pool of trainings, which take turns."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


def shipped_names() -> list[str]:
    """Return the names of the deployments of `prefect.yaml`."""
    values = yaml.safe_load((DEPLOYMENTS / "prefect.yaml").read_text(encoding="utf-8"))
    return [one["name"] for one in values["deployments"]]


def own_deployment(
    recipe: Path, name: str, profile: str | None, cron: str | None
) -> dict[str, object]:
    """Return the entry of a Prefect file that deploys a recipe file.

    Args: cron: times at which it runs by itself, in UTC; None runs it on demand alone. Raises:
    RecipeError on a name that cannot name a deployment, or that a shipped one has.
    """
    if not _NAME.fullmatch(name):
        raise RecipeError(
            f"--name {name!r}: expected small letters, digits and dashes, such as my-recipe"
        )
    if name in shipped_names():
        raise RecipeError(f"--name {name}: a shipped deployment has that name; choose another")
    parameters: dict[str, object] = {"recipe": str(recipe.absolute())}
    if profile is not None:
        parameters["profile"] = profile
    entry: dict[str, object] = {
        "name": name,
        "entrypoint": FLOW,
        "description": f"The recipe {recipe.absolute()}",
        "parameters": parameters,
        "work_pool": {"name": POOL},
    }
    if cron is not None:
        entry["schedules"] = [{"slug": "own", "cron": cron, "timezone": "UTC"}]
    return entry


def project_file(entry: dict[str, object]) -> str:
    """Return the text of a Prefect file with this deployment alone."""
    return yaml.safe_dump({"name": "rl-train", "deployments": [entry]}, sort_keys=False)
