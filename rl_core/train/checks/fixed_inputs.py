"""Evaluation of a sharded policy on its bundle's probe inputs, for comparison with another copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor

from rl_core.models.modes import evaluation_mode
from rl_core.train.trained import Trained


@contextmanager
def asking(backend: Trained, *, averaged: bool) -> Iterator[Callable[[], Tensor]]:
    """Yield a function that evaluates the policy, or its moving average. Collective: every rank
    runs the same passes."""
    backend.check_onloaded("the comparison with another copy")
    with ExitStack() as stack:
        if averaged:
            stack.enter_context(_average_in_place(backend))
        if backend.fsdp_cfg.torch_compile:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(evaluation_mode(backend.policy))
        yield partial(backend.bundle.said_by, backend.policy, backend.device)


@contextmanager
def _average_in_place(backend: Trained) -> Iterator[None]:
    """Put the average in place during the block. The same bits are restored afterwards, so the
    weight version stays the same."""
    backend.reshard()
    backend.moving_average().apply()
    try:
        yield
    finally:
        backend.reshard()
        backend.moving_average().restore()
