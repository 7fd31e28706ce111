"""Evaluation of a sharded policy on its bundle's probe inputs, for comparison with another copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl_core.models.modes import evaluation_mode

if TYPE_CHECKING:
    from rl_core.train.fsdp import FSDPBackend


@contextmanager
def asking(backend: FSDPBackend, *, averaged: bool) -> Iterator[Callable[[], Tensor]]:
    """Yield a function that evaluates the policy, or its moving average. Collective: every rank
    runs the same passes."""
    backend._check_onloaded("the comparison with another copy")
    with ExitStack() as stack:
        if averaged:
            stack.enter_context(_average_in_place(backend))
        if backend.fsdp_cfg.torch_compile:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(evaluation_mode(backend.policy))
        yield partial(backend.bundle.said_by, backend.policy, backend.device)


@contextmanager
def _average_in_place(backend: FSDPBackend) -> Iterator[None]:
    """Put the average in place during the block. The same bits are restored afterwards, so the
    weight version stays the same."""
    backend._reshard()
    backend._require_ema().apply()
    try:
        yield
    finally:
        backend._reshard()
        backend._require_ema().restore()
