"""Checkpoint of all ranks: distributed checkpoint files and a random state per rank.

    weights/       trained parameters, optimizer moments, moving average; for any number of ranks
    rank-N.pt      schedule, counts, optimizer settings and random state of rank N
    contents.json  description, so that a different set-up is refused by name

Completeness of a checkpoint is decided elsewhere: `RunFolder.publish_checkpoint` writes into a
hidden folder, syncs, renames, and writes a sentinel last.
"""

from __future__ import annotations

import io
import json
import pickle
import random
import warnings
from collections.abc import Mapping
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from rl_core.errors import StorageError
from rl_core.train.muon import MATRICES, STEP
from rl_core.train.optimizer import add_moments, kind_of
from rl_core.train.shard_files import LocalFiles, RemoteFiles, shard_files
from rl_core.train.trained import Trained
from schemas.sections.optimizer import OptimizerKind

_CONTENTS = "contents.json"
WEIGHTS = "weights"
"""Folder of a checkpoint with the sharded state."""

Settings = dict[str, Any]
"""Settings in the form of torch's `state_dict()` and parameter groups."""


class Sharded(TypedDict, total=False):
    """Tensors that are sharded over ranks, by name of the parameter; the average only where there
    is one."""

    model: Mapping[str, Tensor]
    moments: Mapping[str, Mapping[str, Tensor]]
    ema: Mapping[str, Tensor]


class Counts(TypedDict):
    """Part of the optimizer that is not sharded: its settings, and how often each parameter was
    changed."""

    settings: Settings
    steps: dict[str, float]


class RandomState(TypedDict):
    """State of a rank's random number generators."""

    python: tuple[object, ...]
    numpy: Settings | tuple[str, NDArray[np.uint32], int, int, float]
    torch: Tensor
    cuda: Tensor | None


class Local(TypedDict):
    """A rank's file."""

    rank: int
    optimizer: Counts
    scheduler: Settings
    num_skipped_steps: int
    num_ema_updates: int
    random: RandomState


@torch.no_grad()
def save(backend: Trained, folder: str) -> None:
    """Write all ranks' shards to `folder`, a path or an address of an object store. Raises:
    StorageError when a write fails."""
    files = shard_files(folder)
    try:
        _save_sharded(sharded_state(backend), files, is_alone=backend.rank_info.world_size == 1)
    except (OSError, RuntimeError, CheckpointException) as error:
        raise files.not_written(error) from error
    save_own(backend, files)


def save_own(backend: Trained, files: LocalFiles | RemoteFiles) -> None:
    """Write what is this rank's alone. Raises: StorageError when a write fails."""
    try:
        local = io.BytesIO()
        torch.save(_local_state(backend), local)
        files.write(f"rank-{backend.rank_info.rank}.pt", local.getvalue())
        if backend.rank_info.rank == 0:
            files.write(_CONTENTS, json.dumps(_contents(backend)).encode())
    except (OSError, RuntimeError) as error:
        raise files.not_written(error) from error


def load(backend: Trained, folder: str) -> None:
    """Restore from `folder`, on any number of ranks.

    Raises: StorageError when files are missing or damaged, or belong to another set-up.
    """
    files = shard_files(folder)
    _check_contents(backend, files)
    state = sharded_state(backend)
    try:
        # Weights and moments are read straight into their own tensors, so everything else must be
        # there first.
        with files.open(_rank_file(backend, files)) as file:
            local: Local = torch.load(file, weights_only=False)
        state_dict_loader.load({**state}, storage_reader=files.reader(WEIGHTS))
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError, CheckpointException) as error:
        raise files.not_read(error) from error
    _restore_counts(backend, local["optimizer"])
    _restore_schedule(backend, local["scheduler"])
    backend.num_skipped_steps = local["num_skipped_steps"]
    if backend.ema is not None:
        backend.ema.num_updates = local["num_ema_updates"]
    if local["rank"] == backend.rank_info.rank:
        _restore_random(local["random"])


def sharded_state(backend: Trained) -> Sharded:
    """Return the sharded state: the trained tensors, which are few with adapters, and those that
    follow them."""
    add_moments(backend.optimizer)
    follow = {}
    for name, value in backend.trainable.items():
        follow[name] = backend.optimizer.state[value]
    moments = {}
    for name, optimizer_state in follow.items():
        moments[name] = {key: value for key, value in optimizer_state.items() if key != STEP}
    state: Sharded = {"model": dict(backend.trainable), "moments": moments}
    if backend.ema is not None:
        state["ema"] = backend.ema.state()
    return state


def _counts(backend: Trained) -> Counts:
    # The parameter groups all have the same settings. They exist only for the fused step and for
    # Muon and may differ between ranks, so the first one stands for all.
    settings = {}
    for key, one in backend.optimizer.param_groups[0].items():
        if key not in ("params", MATRICES):
            settings[key] = one
    state = backend.optimizer.state
    steps = {}
    for name, value in backend.trainable.items():
        steps[name] = float(state[value][STEP])
    return {"settings": settings, "steps": steps}


def _restore_counts(backend: Trained, counts: Counts) -> None:
    for group in backend.optimizer.param_groups:
        group.update(counts["settings"])
    for name, value in backend.trainable.items():
        backend.optimizer.state[value][STEP].fill_(counts["steps"][name])


def _restore_schedule(backend: Trained, state: Settings) -> None:
    # One number for each parameter group, of which another layout may have more or fewer.
    num_groups = len(backend.optimizer.param_groups)
    alike = {name: state[name][:1] * num_groups for name in ("base_lrs", "_last_lr")}
    backend.scheduler.load_state_dict({**state, **alike})


def _save_sharded(state: Sharded, files: LocalFiles | RemoteFiles, *, is_alone: bool) -> None:
    """Write the sharded state.

    Args: is_alone: a single rank has nothing to agree on with others, which takes a fifth of the
    time of a small save.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        state_dict_saver.save({**state}, storage_writer=files.writer(WEIGHTS), no_dist=is_alone)


def _contents(backend: Trained) -> dict[str, str]:
    lora, ema = backend.lora_cfg, backend.ema_cfg
    return {
        "weights": "full" if lora is None else f"adapters of rank {lora.rank}",
        "average": "none" if ema is None else type(ema).__name__,
        "optimizer": kind_of(backend.optimizer),
    }


def _check_contents(backend: Trained, files: LocalFiles | RemoteFiles) -> None:
    try:
        with files.open(_CONTENTS) as file:
            held = json.load(file)
        # Checkpoints from before there was another one do not say it.
        held.setdefault("optimizer", OptimizerKind.ADAMW)
    except (OSError, ValueError, AttributeError) as error:
        raise StorageError(f"checkpoint {files} cannot be read: {_CONTENTS}: {error}") from error
    for name, wanted in _contents(backend).items():
        if held.get(name) != wanted:
            raise StorageError(
                f"checkpoint {files} holds {name}: {held.get(name)}, this run trains {name}: "
                f"{wanted}; use the recipe that wrote it, or start afresh"
            )


def _rank_file(backend: Trained, files: LocalFiles | RemoteFiles) -> str:
    """Return this rank's file; rank 0's if fewer ranks wrote, whose schedule and counts are the
    same for all."""
    own = f"rank-{backend.rank_info.rank}.pt"
    if files.has(own):
        return own
    return "rank-0.pt"


def _local_state(backend: Trained) -> Local:
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


def _restore_random(state: RandomState) -> None:
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
