"""The experts of each token of a rollout's rows: recorded while replies are decoded, carried in a
column, and put where a training pass has the tokens.

Axes: B rows, L positions, S tokens of a row from its first, R rows being decoded, M blocks with
experts, K chosen experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rl_core.models.decoding.router_replay import Recording, Replay, routed_by

ROUTING = "routing"
"""Object column of a rollout with the experts that each token was sent to, an array [S, M, K] per
row: uint8, or int16 for more than 256 experts. Its S tokens are the first of the row, all but the
last sampled one, which was not read; None for a row that was not sampled."""


class Prompted(Protocol):
    """A request as it is seen here."""

    @property
    def token_ids(self) -> list[int]:
        """The prompt."""
        ...

    @property
    def num_replies(self) -> int:
        """Number of replies."""
        ...


class RoutingLog:
    """The experts of replies that are decoded together.

    Args: requests: prompts as they are read, each once. records: False keeps nothing.
    """

    def __init__(self, requests: Sequence[Prompted], *, records: bool) -> None:
        self._requests = requests
        self._recording = Recording() if records else None
        self._prompts: list[Tensor] = []
        self._steps: list[Tensor] = []
        self._rows: list[list[int]] = []

    def in_effect(self) -> AbstractContextManager[None]:
        """Return a context in which the model's routers are recorded."""
        return routed_by(self._recording)

    def add_prompts(self) -> None:
        """Keep the experts of the prompts, which were read with padding first."""
        if self._recording is None:
            return
        chosen_PLMK = self._recording.take(len(self._requests))
        for one, chosen_LMK in zip(self._requests, chosen_PLMK, strict=True):
            self._prompts.append(chosen_LMK[len(chosen_LMK) - len(one.token_ids) :].cpu())

    def add_step(self, rows: Sequence[int]) -> None:
        """Keep the experts of one more token of each row. Args: rows: numbers of the replies."""
        if self._recording is None:
            return
        # A model without a cache reads its rows anew; the token is their last.
        self._steps.append(self._recording.take(len(rows))[:, -1])
        self._rows.append(list(rows))

    def replies(self) -> list[np.ndarray | None]:
        """Return the experts of each reply with its prompt before it, [S, M, K]; None if they are
        not recorded."""
        counts = [one.num_replies for one in self._requests]
        if self._recording is None:
            return [None] * sum(counts)
        parts = []
        for prompt, count in zip(self._prompts, counts, strict=True):
            parts += [[prompt] for _ in range(count)]
        for rows, step_RMK in zip(self._rows, self._steps, strict=True):
            for row, chosen_MK in zip(rows, step_RMK.cpu(), strict=True):
                parts[row].append(chosen_MK[None])
        return [torch.cat(one).numpy() for one in parts]


def replay_of(
    routing_B: Sequence[np.ndarray | None] | None, used_BL: Tensor, source_N: Tensor | None
) -> Replay | None:
    """Return the replay of a training pass; None if no row has experts.

    Args: routing_B: column `ROUTING`. used_BL: mask of tokens. source_N: position in the flattened
    [B * L] rows of each token of the pass; None if it has all positions, padding too.
    """
    shapes = [one.shape[1:] for one in routing_B or () if one is not None]
    if routing_B is None or not shapes:
        return None
    given_BLMK = torch.full((*used_BL.shape, *shapes[0]), -1, dtype=torch.int16)
    for given_LMK, routing, used_L in zip(given_BLMK, routing_B, used_BL.cpu(), strict=True):
        if routing is not None:
            places = used_L.nonzero()[: len(routing), 0]
            given_LMK[places] = torch.from_numpy(routing[: len(places)].astype(np.int16))
    given_NMK = given_BLMK.flatten(0, 1).to(used_BL.device)
    return Replay(given_NMK if source_N is None else given_NMK[source_N])
