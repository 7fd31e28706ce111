"""A checkpoint that is written while training goes on: training waits for the copy alone.

torch's `async_save` copies the sharded state and writes it in a thread, where ranks agree over a
process group of their own. The copy is made before the first next step, so what is written is what
`checkpoint.save` would have written, bit for bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from rl_core.train import checkpoint
from rl_core.train.shard_files import LocalFiles, RemoteFiles, shard_files

Tree = Mapping[str, Any]


class SavesInBackground:
    """Part of a backend: its checkpoint, while training goes on."""

    _group: dist.ProcessGroup | None = None
    _writing: Future[object] | None = None
    _files: LocalFiles | RemoteFiles | None = None

    @torch.no_grad()
    def save_in_background(self, folder: str) -> None:
        """Copy the state of this rank, and begin to write what `save` would write into `folder`.

        Collective. Raises: StorageError when a write fails; RLTrainError as `save`.
        """
        backend = cast(Any, self)
        backend.check_onloaded("save")
        if backend.ema is not None:
            backend.ema.check_not_applied("save")
        self.is_saved(wait=True)
        is_alone = backend.rank_info.world_size == 1
        if not is_alone and self._group is None:
            # Ranks agree in the thread, while the usual groups carry the training.
            self._group = cast("dist.ProcessGroup", dist.new_group(backend="gloo"))
        self._files = files = shard_files(folder)
        copied = _copied(cast(Tree, checkpoint.sharded_state(backend)))
        checkpoint.save_own(backend, files)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            writing = state_dict_saver.async_save(
                {**copied},
                storage_writer=files.writer(checkpoint.WEIGHTS),
                process_group=self._group,
                no_dist=is_alone,
            )
        self._writing = cast("Future[object]", writing)

    def is_saved(self, *, wait: bool) -> bool:
        """Return True if nothing is being written. Args: wait: until then. Raises: StorageError
        when the write failed."""
        if self._writing is None or not (wait or self._writing.done()):
            return self._writing is None
        writing, self._writing = self._writing, None
        try:
            writing.result()
        except (OSError, RuntimeError, CheckpointException) as error:
            assert self._files is not None
            raise self._files.not_written(error) from error
        return True


def _copied(tree: Tree) -> Tree:
    """Return a copy of the tensors of nested mappings; what torch copies by itself is left to it:
    tensors that are on the CPU it takes as they are."""
    copied = {}
    for name, value in tree.items():
        if isinstance(value, Tensor):
            copied[name] = value.detach().clone() if value.device.type == "cpu" else value.detach()
        else:
            copied[name] = _copied(value)
    return copied
