"""Preparation of a cluster for a run: connect, take the devices that are there, and say what every
node needs."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from pathlib import Path

from rl_core.data.store.atomic import atomic_write_text
from rl_core.distributed.cluster import configured_address, ray_cluster
from rl_core.distributed.nodes.capacity import Wanted, wait_for_devices
from rl_core.distributed.nodes.preflight import NONCE, Needs, sketch
from rl_core.distributed.nodes.user_modules import modules_to_send
from rl_core.runs.fitting_devices import fitted
from rl_core.runs.run_folder import RECIPE_FILE, RunFolder
from rl_core.runtime.home import Home
from rl_core.trainers.progress import ProgressEvent, announce
from schemas.recipe import Recipe


def cluster_of(recipe: Recipe) -> AbstractContextManager[None]:
    """Return the connection to the recipe's cluster, or to a private one of this machine."""
    placed = recipe.placement
    address = configured_address(placed.ray_address)
    modules = modules_to_send(recipe.model_dump(mode="json")) if address else []
    return ray_cluster(address, placed.num_devices, placed.device, modules)


def with_devices_there(recipe: Recipe) -> Recipe:
    """Return the recipe with as many devices as the connected cluster has, after a wait for
    replacements of lost nodes. Nobody replaces a private cluster's; it comes with the next one.

    Raises: NodeLost when too few are left; RecipeError when the cluster never had enough.
    """
    placed = recipe.placement
    wanted = Wanted(placed.num_devices, placed.device, placed.devices_per_node)
    least = placed.min_devices or placed.num_devices
    wait_s = placed.wait_for_nodes_s
    if wait_s is None and configured_address(placed.ray_address) is None:
        wait_s = 0.0
    have = wait_for_devices(wanted, wait_s, least, _note)
    if have == placed.num_devices:
        return recipe
    smaller = fitted(recipe, have, least)
    _note(
        f"going on with {smaller.placement.num_devices} of {placed.num_devices} devices "
        "(placement.min_devices)"
    )
    return smaller


def needs_of(recipe: Recipe, source: str, folder: RunFolder, home: Home) -> Needs:
    """Return what every node of the placement needs; leaves a mark in the run's folder or store, by
    which a node can tell that it sees that one."""
    if configured_address(recipe.placement.ray_address) is None:
        return Needs(device_kind=recipe.placement.device)
    nonce, run = uuid.uuid4().hex, ""
    if folder.store is not None:
        run = str(folder.store)
        folder.store.write(NONCE, nonce.encode())
    elif (folder.root / RECIPE_FILE).is_file():  # one that trains, and writes checkpoints
        run = str(folder.root)
        atomic_write_text(folder.root / NONCE, nonce)
    folders = [source] if Path(source).is_absolute() else []
    folders += _local_folders(recipe, home)
    return Needs(
        run=run,
        nonce=nonce,
        folders=tuple((one, sketch(Path(one))) for one in dict.fromkeys(folders)),
        device_kind=recipe.placement.device,
        home=str(home.root),
        note=_note,
    )


def _local_folders(recipe: Recipe, home: Home) -> list[str]:
    """Return the folders of the home that the recipe names, such as models of scorers."""
    found: dict[str, None] = {}
    left: list[object] = [recipe.model_dump(mode="json", exclude={"data", "validation"})]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += one.values()
        elif isinstance(one, list):
            left += one
        elif isinstance(one, str) and one.startswith(str(home.root)) and Path(one).is_dir():
            found[one] = None
    return list(found)


def _note(text: str) -> None:
    announce(ProgressEvent("note", text=text))
