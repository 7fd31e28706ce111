"""A rank's share of a checkpoint: distributed checkpoint files plus its random state."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

from rl_core.errors import StorageError

if TYPE_CHECKING:
    from rl_core.train.fsdp import FSDPBackend

# Frozen parameters come from the base model; with adapters this is what keeps a checkpoint small.
_OPTIONS = StateDictOptions(ignore_frozen_params=True, strict=False)


def save(backend: FSDPBackend, folder: Path) -> None:
    """Write all ranks' shards to `folder`. Raises: StorageError when the disk refuses."""
    model, optimizer = get_state_dict(backend.policy, backend.optimizer, options=_OPTIONS)
    try:
        state_dict_saver.save({"model": model, "optimizer": optimizer}, checkpoint_id=folder / "weights")
        torch.save(_local_state(backend), folder / f"rank-{backend.rank_info.rank}.pt")
    except (OSError, RuntimeError, CheckpointException) as error:
        raise StorageError(
            f"checkpoint {folder} could not be written ({str(error).strip().splitlines()[-1]}); free some space or set "
            "RL_TRAIN_HOME to a larger disk, then run again: training continues from the last complete checkpoint"
        ) from error


def load(backend: FSDPBackend, folder: Path) -> None:
    """Restore from `folder`, on any number of ranks. Raises: StorageError when files are missing or damaged."""
    model, optimizer = get_state_dict(backend.policy, backend.optimizer, options=_OPTIONS)
    state: dict[str, Any] = {"model": model, "optimizer": optimizer}
    try:
        state_dict_loader.load(state, checkpoint_id=folder / "weights")
    except (OSError, RuntimeError, CheckpointException) as error:
        raise StorageError(f"checkpoint {folder} cannot be read: {str(error).strip().splitlines()[-1]}") from error
    set_state_dict(
        backend.policy,
        backend.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=_OPTIONS,
    )
    rank_file = folder / f"rank-{backend.rank_info.rank}.pt"
    # After a change of rank count there may be no random state for this rank; the others' schedule still holds.
    local = torch.load(rank_file if rank_file.is_file() else folder / "rank-0.pt", weights_only=False)
    backend.scheduler.load_state_dict(local["scheduler"])
    backend.num_skipped_steps = local["num_skipped_steps"]
    if rank_file.is_file():
        _restore_random(local["random"])


def _local_state(backend: FSDPBackend) -> dict[str, Any]:
    return {
        "scheduler": backend.scheduler.state_dict(),
        "num_skipped_steps": backend.num_skipped_steps,
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
