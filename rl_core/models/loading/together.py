"""A model that several ranks load to shard it: each leaves the weights in their files until its
blocks are cut up, and the first one probes the model for all of them. One that fails tells the
others, so that none waits for it.

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

from rl_core.errors import SiblingFailed
from rl_core.kernels import freed_memory_given_back
from rl_core.models.checks.paths import Paths
from rl_core.models.loading.placeholders import ReadWhole, weights_left_unread
from rl_core.runtime.free_memory import free_bytes

if TYPE_CHECKING:
    from rl_core.models.policy import TokenPolicy

P = TypeVar("P", bound="TokenPolicy")
HELD_SHARE = 0.25
"""Share of its machine's free memory that the first rank may fill with layers while it checks a
model, which runs through every layer some forty times: a small model is read once for all of them.

Training all weights of a model takes four times their memory (weights, gradients, two moments), so
that a machine on which it can be trained has this much to spare before.
"""
log = logging.getLogger(__name__)
_together: ContextVar[_Meeting | None] = ContextVar("loaded_together", default=None)


@contextmanager
def loaded_together(really: bool = True) -> Iterator[None]:
    """Let all ranks of the process group load what is loaded in the block together, to shard it
    afterwards. None leaves the block before all are through.

    Raises: the rank's own error; SiblingFailed on the other ranks, when one leaves the block by an
    error.
    """
    is_alone = not (really and dist.is_initialized() and dist.get_world_size() > 1)
    meeting = None if is_alone else _Meeting()
    token = _together.set(meeting)
    try:
        yield
        if meeting is not None:
            meeting.heard(_Said())
    except Exception as error:
        if meeting is not None:
            meeting.leave(error)
        raise
    finally:
        _together.reset(token)


def is_loaded_together() -> bool:
    """Return True in a `loaded_together` block of several ranks."""
    return _together.get() is not None


def load_for_all(load: Callable[[Paths | None], P], known: Paths | None = None) -> P:
    """Return a policy by `load`, with placeholders of its weights in a `loaded_together` block.
    Collective there.

    Args: load: from what is known about the model to the policy; None probes it. known: findings of
    an earlier load. Raises: what `load` does; SiblingFailed when it raised on another rank.
    """
    meeting = _together.get()
    if meeting is None:
        return load(known)
    with freed_memory_given_back():
        policy, said = None, _Said()
        if dist.get_rank() == 0:
            policy, said = _tried(load, known)
        said = meeting.heard(said)
        if policy is not None:
            return policy
        if said.why_whole is not None:
            return load(known)
        with weights_left_unread():
            return load(said.paths)


@dataclass(frozen=True)
class _Said:
    """A rank's word to the others; what is not about an error counts on the first rank."""

    failure: str | None = None
    """Error by which the rank leaves."""
    paths: Paths | None = None
    """Findings about the model, by which the others load it."""
    why_whole: str | None = None
    """Reason why all load it whole."""


class _Meeting:
    """All ranks of the group, which speak at the same points of a load: before the others follow
    the first one, and at its end. One that fails speaks once more, at the point where the others
    wait for it."""

    def __init__(self) -> None:
        self._is_over = False

    def heard(self, said: _Said) -> _Said:
        """Return the word of the first rank, once all have spoken. Raises: SiblingFailed when
        another one fails."""
        # Whatever goes wrong here goes wrong for all, and they meet no more.
        self._is_over = True
        words = self._words(said)
        for rank, one in enumerate(words):
            if one.failure is not None:
                raise SiblingFailed(f"rank {rank} could not load the model: {one.failure}")
        self._is_over = False
        return words[0]

    def leave(self, error: Exception) -> None:
        """Tell the others of this rank's own error, unless they know."""
        if self._is_over:
            return
        self._is_over = True
        try:
            self._words(_Said(failure=_first_line(error)))
        except RuntimeError as gone:
            error.add_note(f"the other ranks could not be told ({_first_line(gone)})")

    @staticmethod
    def _words(said: _Said) -> list[_Said]:
        words = [_Said()] * dist.get_world_size()
        dist.all_gather_object(words, said)
        return words


def _tried(load: Callable[[Paths | None], P], known: Paths | None) -> tuple[P | None, _Said]:
    """Load on the first rank, part by part or else whole."""
    try:
        if known is None:
            # Room for its share of the weights is needed afterwards anyway.
            share, room_bytes = 1 / dist.get_world_size(), int(HELD_SHARE * free_bytes())
        else:
            share, room_bytes = 0.0, 0
        with weights_left_unread(share, room_bytes):
            policy = load(known)
        refused = {} if policy.paths is None else policy.paths.refused
        # Whether the way of reading or the model is at fault shows when it is read whole.
        if known is None and refused and not _same(load(None).paths, policy.paths):
            raise ReadWhole("a check of it says something else when it is read part by part")
        return policy, _Said(paths=policy.paths)
    except Exception as error:  # a foreign model may raise anything; it is then loaded as ever
        why = _first_line(error)
    log.warning("the model is loaded whole on every rank: %s", why)
    return load(known), _Said(why_whole=why)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _same(one: Paths | None, other: Paths | None) -> bool:
    """Return True if the same ways were found to differ; by how much may vary in the last bits."""
    if one is None or other is None:
        return one is other
    return one.refused.keys() == other.refused.keys() and one.closed.keys() == other.closed.keys()
