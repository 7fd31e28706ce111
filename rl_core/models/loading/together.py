"""A model that several ranks load to shard it: each leaves the weights in their files until its
blocks are cut up, and the first one probes the model for all of them.

Where a model cannot be read block by block, or a check of it fails, every rank loads it whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist

from rl_core.kernels import freed_memory_given_back
from rl_core.models.checks.paths import Paths
from rl_core.models.loading.placeholders import ReadWhole, weights_left_unread

if TYPE_CHECKING:
    from rl_core.models.policy import TokenPolicy

P = TypeVar("P", bound="TokenPolicy")
log = logging.getLogger(__name__)
_together: ContextVar[bool] = ContextVar("loaded_together", default=False)


@contextmanager
def loaded_together(really: bool = True) -> Iterator[None]:
    """Let all ranks of the process group load what is loaded in the block together, to shard it
    afterwards."""
    token = _together.set(really and dist.is_initialized() and dist.get_world_size() > 1)
    try:
        yield
    finally:
        _together.reset(token)


def is_loaded_together() -> bool:
    """Return True in a `loaded_together` block of several ranks."""
    return _together.get()


def load_for_all(load: Callable[[Paths | None], P], known: Paths | None = None) -> P:
    """Return a policy by `load`, with placeholders of its weights in a `loaded_together` block.
    Collective there.

    Args: load: from what is known about the model to the policy; None probes it. known: findings of
    an earlier load. Raises: what `load` does; what it raised on the first rank, on every rank.
    """
    if not is_loaded_together():
        return load(known)
    with freed_memory_given_back():
        return _load_for_all(load, known)


def _load_for_all(load: Callable[[Paths | None], P], known: Paths | None) -> P:
    policy, plan = None, _Plan()
    if dist.get_rank() == 0:
        policy, plan = _tried(load, known)
    box = [plan]
    dist.broadcast_object_list(box, src=0)
    plan = box[0]
    if plan.error is not None:
        raise plan.error
    if policy is not None:
        return policy
    if plan.why_whole is not None:
        return load(known)
    with weights_left_unread():
        return load(plan.paths)


@dataclass(frozen=True)
class _Plan:
    """Findings of the first rank, by which the others load a model."""

    paths: Paths | None = None
    why_whole: str | None = None
    error: Exception | None = None


def _tried(load: Callable[[Paths | None], P], known: Paths | None) -> tuple[P | None, _Plan]:
    """Load on the first rank, part by part or else whole."""
    try:
        # Room for its share of the weights is needed afterwards anyway.
        with weights_left_unread(keep=0.0 if known else 1 / dist.get_world_size()):
            policy = load(known)
        refused = {} if policy.paths is None else policy.paths.refused
        # Whether the way of reading or the model is at fault shows when it is read whole.
        if known is None and refused and not _same(load(None).paths, policy.paths):
            raise ReadWhole("a check of it says something else when it is read part by part")
        return policy, _Plan(policy.paths)
    except Exception as error:  # a foreign model may raise anything; it is then loaded as ever
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    log.warning("the model is loaded whole on every rank: %s", why)
    try:
        return load(known), _Plan(why_whole=why)
    except Exception as error:
        return None, _Plan(error=error)


def _same(one: Paths | None, other: Paths | None) -> bool:
    """Return True if the same ways were found to differ; by how much may vary in the last bits."""
    if one is None or other is None:
        return one is other
    return one.refused.keys() == other.refused.keys() and one.closed.keys() == other.closed.keys()
