"""The order in which an engine took weights in flight, step by step, on disk.

It is there before anything else is told of the step. A run that is resumed in the middle of an
iteration follows it as far as it goes, and so repeats the steps that it had done bit for bit. A run
that trains a model again follows that of the first (`rollout.orders`).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from rl_core.data.store.atomic import disk_errors
from rl_core.errors import RecipeError
from rl_core.runs.run_folder import ORDERS_FILE
from rl_core.runtime.user_paths import user_path
from rl_core.train.weights.order import Order
from rl_core.trainers.base import Trainer
from rl_core.trainers.own_engine import follow


def note_order(root: Path, step: int, order: Order) -> None:
    """Append a step's order to the file of a run's folder. Raises: StorageError."""
    line = json.dumps({"step": step, "ranks": order.to_lists()})
    path = root / ORDERS_FILE
    # A line of its own, also after one that a kill cut off.
    with disk_errors(path), path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
        file.flush()
        os.fsync(file.fileno())


def orders_of(root: Path) -> dict[int, Order]:
    """Return the orders of a run's steps. A line that a kill cut off is left out."""
    path = root / ORDERS_FILE
    return _read(path) if path.is_file() else {}


def _read(path: Path) -> dict[int, Order]:
    orders = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            said = json.loads(line)
            orders[int(said["step"])] = Order.of_lists(said["ranks"])
        except (ValueError, KeyError, TypeError):
            continue
    return orders


def follow_orders(trainer: Trainer, root: Path, given: str | None = None) -> None:
    """Have a trainer's engine take weights as a run's earlier processes did, and as another run's.

    Args: given: file of that other run, the recipe's `rollout.orders`. Raises: RecipeError when it
    has no orders.
    """
    orders = orders_of(root)
    if given is not None:
        path = user_path(given)
        others = _read(path) if path.is_file() else {}
        if not others:
            raise RecipeError(
                f"rollout.orders: {given} is no file with the orders of a run ({ORDERS_FILE} in "
                "its folder); name one, or leave it out"
            )
        orders = others | orders
    if orders:
        follow(trainer.tracks.values(), orders)
