"""Checkpoint of all ranks: distributed checkpoint files and a random state per rank.

    weights/       trained parameters, optimizer moments, moving average; for any number of ranks
    rank-N.pt      schedule, counts, optimizer settings and random state of rank N
    contents.json  description, so that a different set-up is refused by name

Completeness of a checkpoint is decided elsewhere: `RunFolder.publish_checkpoint` writes into a
hidden folder, syncs, renames, and writes a sentinel last.
"""

from __future__ import annotations

import json
import pickle
import random
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from rl_core.errors import StorageError
from rl_core.train.optimizer import MOMENTS, STEP, add_moments

if TYPE_CHECKING:
    from rl_core.train.fsdp import FSDPBackend

_CONTENTS = "contents.json"


@torch.no_grad()
def save(backend: FSDPBackend, folder: Path) -> None:
    """Write all ranks' shards to `folder`. Raises: StorageError when a write fails."""
    try:
        _save_sharded(_state(backend), folder / "weights", is_alone=backend.rank_info.world_size == 1)
        torch.save(_local_state(backend), folder / f"rank-{backend.rank_info.rank}.pt")
        if backend.rank_info.rank == 0:
            (folder / _CONTENTS).write_text(json.dumps(_contents(backend)), encoding="utf-8")
    except (OSError, RuntimeError, CheckpointException) as error:
        raise StorageError(
            f"checkpoint {folder} could not be written ({str(error).strip().splitlines()[-1]}); free some space or set "
            "RL_TRAIN_HOME to a larger disk, then run again: training continues from the last complete checkpoint"
        ) from error


def load(backend: FSDPBackend, folder: Path) -> None:
    """Restore from `folder`, on any number of ranks.

    Raises: StorageError when files are missing or damaged, or belong to another set-up.
    """
    _check_contents(backend, folder)
    state = _state(backend)
    try:
        # Weights and moments are read straight into their own tensors, so everything else must be there first.
        local = torch.load(_rank_file(backend, folder), weights_only=False)
        state_dict_loader.load(state, checkpoint_id=folder / "weights")
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, CheckpointException) as error:
        raise StorageError(f"checkpoint {folder} cannot be read: {str(error).strip().splitlines()[-1]}") from error
    _restore_counts(backend, local["optimizer"])
    backend.scheduler.load_state_dict(local["scheduler"])
    backend.num_skipped_steps = local["num_skipped_steps"]
    if backend.ema is not None:
        backend.ema.num_updates = local["num_ema_updates"]
    if local["rank"] == backend.rank_info.rank:
        _restore_random(local["random"])


def _state(backend: FSDPBackend) -> dict[str, Any]:
    """Return the sharded state: the trained tensors, which are few with adapters, and those that
    follow them."""
    add_moments(backend.optimizer)
    follow = {name: backend.optimizer.state[value] for name, value in backend.trainable.items()}
    moments = {name: {key: state[key] for key in MOMENTS} for name, state in follow.items()}
    state = {"model": dict(backend.trainable), "moments": moments}
    return state if backend.ema is None else state | {"ema": backend.ema.state()}


def _counts(backend: FSDPBackend) -> dict[str, Any]:
    """Return the optimizer's state that is not sharded: its settings, and the update count of each
    parameter."""
    # Its groups are for the fused step alone, may be others on other ranks, and have the same settings.
    settings = {key: one for key, one in backend.optimizer.param_groups[0].items() if key != "params"}
    state = backend.optimizer.state
    steps = {name: float(state[value][STEP]) for name, value in backend.trainable.items()}
    return {"settings": settings, "steps": steps}


def _restore_counts(backend: FSDPBackend, counts: dict[str, Any]) -> None:
    for group in backend.optimizer.param_groups:
        group.update(counts["settings"])
    for name, value in backend.trainable.items():
        backend.optimizer.state[value][STEP].fill_(counts["steps"][name])


def _save_sharded(state: dict[str, Any], folder: Path, *, is_alone: bool) -> None:
    """Write the sharded state.

    Args: is_alone: a single rank has nothing to agree on with others, which takes a fifth of the
    time of a small save.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        state_dict_saver.save(state, checkpoint_id=folder, no_dist=is_alone)


def _contents(backend: FSDPBackend) -> dict[str, Any]:
    lora, ema = backend.lora_cfg, backend.ema_cfg
    return {
        "weights": "full" if lora is None else f"adapters of rank {lora.rank}",
        "average": "none" if ema is None else type(ema).__name__,
    }


def _check_contents(backend: FSDPBackend, folder: Path) -> None:
    try:
        held = json.loads((folder / _CONTENTS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StorageError(f"checkpoint {folder} cannot be read: {_CONTENTS}: {error}") from error
    for name, wanted in _contents(backend).items():
        if held.get(name) != wanted:
            raise StorageError(
                f"checkpoint {folder} holds {name}: {held.get(name)}, this run trains {name}: {wanted}; "
                "use the recipe that wrote it, or start afresh"
            )


def _rank_file(backend: FSDPBackend, folder: Path) -> Path:
    """Return this rank's file; rank 0's if fewer ranks wrote, whose schedule and counts are the
    same for all."""
    own = folder / f"rank-{backend.rank_info.rank}.pt"
    return own if own.is_file() else folder / "rank-0.pt"


def _local_state(backend: FSDPBackend) -> dict[str, Any]:
    return {
        "rank": backend.rank_info.rank,
        "optimizer": _counts(backend),
        "scheduler": backend.scheduler.state_dict(),
        "num_skipped_steps": backend.num_skipped_steps,
        "num_ema_updates": 0 if backend.ema is None else backend.ema.num_updates,
        "random": {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state() if backend.device.type == "cuda" else None,
        },
    }


def _restore_random(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
