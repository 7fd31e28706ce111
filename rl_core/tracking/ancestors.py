"""Earlier versions that a version was made with: the one its training started from, the reward
models that paid it, the teachers that taught it, and theirs in turn.

They are read from the recorded recipes: a model in a registered folder, or `models:/NAME/VERSION`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import yaml

from rl_core.errors import StorageError
from rl_core.tracking.database import tracking_client
from rl_core.tracking.keys import filter_value
from rl_core.tracking.model_versions import RegisteredVersion, describe_version, find_version

_VERSION = re.compile(r"models:/[^/@]+/\d+")
_FOLDER_KEYS = ("path", "model")
"""Keys of a recipe whose values may be folders of weights."""


@dataclass(frozen=True)
class Ancestor:
    """A registered version that a later one was made with."""

    name: str
    version: int
    model_dir: str
    weights_digest: str
    """Digest of the weights at registration; empty if none was recorded."""
    of: str
    """The version that was made with this one, as `NAME vVERSION`."""
    key: str
    """Key of that version's recipe, such as `model.path` or `rewards.0.model`."""

    def __str__(self) -> str:
        return f"after    {self.name} v{self.version}  {self.model_dir}  ({self.key} of {self.of})"


def ancestors(
    tracking_uri: str, version: RegisteredVersion, recipe_of: Callable[[RegisteredVersion], str]
) -> list[Ancestor]:
    """Return every version that a version descends from, the nearest first.

    Args: recipe_of: returns the recipe that a version was trained with, as YAML text.
    """
    found: dict[tuple[str, int], Ancestor] = {}
    left = [version]
    while left:
        one = left.pop(0)
        for key, parent in _parents(tracking_uri, recipe_of(one)):
            known = parent.name, parent.version
            if known in found or known == (version.name, version.version):
                continue
            found[known] = Ancestor(
                name=parent.name,
                version=parent.version,
                model_dir=parent.tags.get("model_dir", ""),
                weights_digest=parent.tags.get("weights_digest", ""),
                of=f"{one.name} v{one.version}",
                key=key,
            )
            if "run_id" in parent.tags:
                left.append(parent)
    return list(found.values())


def _parents(tracking_uri: str, recipe: str) -> Iterator[tuple[str, RegisteredVersion]]:
    for key, text in _texts(yaml.safe_load(recipe)):
        if _VERSION.fullmatch(text):
            try:
                parent = find_version(tracking_uri, text)
            except StorageError:
                name, _, number = text.removeprefix("models:/").rpartition("/")
                gone = {"model_dir": "(no longer registered)"}
                parent = RegisteredVersion(name, int(number), gone, {}, "")
        elif key.rpartition(".")[2] in _FOLDER_KEYS and "/" in text:
            parent = _version_in(tracking_uri, text)
        else:
            parent = None
        if parent is not None:
            yield key, parent


def _version_in(tracking_uri: str, folder: str) -> RegisteredVersion | None:
    """Return the version whose weights are in a folder, or None."""
    client = tracking_client(tracking_uri)
    if (quoted := filter_value(folder)) is None:
        return None
    versions = client.search_model_versions(f"tags.model_dir = {quoted}")
    if versions:
        return describe_version(client, versions[0])
    return None


def _texts(value: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted key and the value of every text in a recipe."""
    if isinstance(value, str):
        yield key, value
    items = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for part, one in items:
        yield from _texts(one, f"{key}.{part}" if key else str(part))
