"""Weights that are renewed while replies are being decoded (in-flight updates).

Between two tokens a batch goes on with newer weights: its rows, prompts and tokens so far, are read
again with them, as the trainer will read them, so each token's log-probability is of one version of
the weights. (PipelineRL, arXiv 2509.19128, keeps what older weights computed of a row; AReaL, arXiv
2505.24298, reads it again.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from rl_core.kernels import Packed
from rl_core.models.decoding.request import Reply, Request, StopReason


class Renewal(Protocol):
    """Weights of the policy that decodes, which may be renewed between two tokens."""

    @property
    def version(self) -> int:
        """Number of the weights."""
        ...

    @property
    def packed(self) -> Packed:
        """Packed products of the weights, as of `ready_to_decode`."""
        ...

    def is_due(self) -> bool:
        """Return True if newer weights are to be loaded now. Called once after each token of a
        batch that goes on, or after each answer of a server."""
        ...

    def load(self) -> None:
        """Load the newer weights into the policy."""
        ...


def read_again(request: Request, reply: Reply) -> Request:
    """Return a request that reads a prompt with its reply so far."""
    return replace(request, token_ids=request.token_ids + reply.token_ids, num_replies=1)


def read_so_far(request: Request) -> Request:
    """Return a request that reads its prompt with its reply so far, if it was begun."""
    return request if request.begun is None else read_again(request, request.begun)


def begun_reply(request: Request, reason: StopReason) -> Reply:
    """Return a new reply, or a copy of the one that goes on. Args: reason: why it ends if nothing
    ends it."""
    if request.begun is None:
        return Reply([], [], reason)
    begun = request.begun
    return Reply(
        list(begun.token_ids),
        list(begun.log_probs),
        reason,
        begun.support,
        versions=list(begun.versions),
    )
