"""Rows of different lengths, arranged in rectangles for attention: each line has the queries of one
row and the keys that they see.

Layers that work token by token get one sequence without padding. Attention copies queries, keys and
values from it into rectangles, padded at the end, and copies each token's result back. A token is a
query at one place and may be a key at several: the gradient of its key is the sum over those.

Axes: N tokens of the sequence, M places in all rectangles, R rows of one, Q queries and L keys of a
row, S tokens with several places, G places of the token with most, F features.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from rl_core.kernels.autograd_context import AutogradContext

FULLNESS = 0.75
"""Smallest ratio of the shorter to the longer row's length for which they share a rectangle."""


@dataclass(frozen=True)
class Row:
    """Tokens of one row, each seeing itself and those before it; the tokens from `start` on are
    queries."""

    tokens: Tensor
    start: int

    @property
    def num_keys(self) -> int:
        """Number of tokens, all of which are keys."""
        return len(self.tokens)

    @property
    def num_queries(self) -> int:
        """Number of tokens that are queries."""
        return len(self.tokens) - self.start


@dataclass(frozen=True)
class Rectangle:
    """Rows of queries and of keys, padded to common lengths."""

    num_queries: int
    num_keys: int
    starts: tuple[int, ...]
    """Index, in each row, of the key at the position of the first query."""
    _masks: dict[object, Tensor | None] = field(default_factory=dict, repr=False)

    def mask(self, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        """Return the mask that is added to the scores, [R, 1, Q, L]; None for plain causal
        attention over squares.

        Args: window: largest number of keys that a query sees, including its own.
        """
        if (window, dtype) not in self._masks:
            self._masks[window, dtype] = self._mask(window, dtype, device)
        return self._masks[window, dtype]

    def _mask(self, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor | None:
        cut = window if window is not None and window < self.num_keys else None
        if cut is None and not any(self.starts):
            return None
        start_R = torch.tensor(self.starts, device=device)
        place_Q, place_L = (
            torch.arange(size, device=device) for size in (self.num_queries, self.num_keys)
        )
        distance_RQL = (start_R[:, None] + place_Q)[..., None] - place_L
        hidden_RQL = distance_RQL < 0
        if cut is not None:
            hidden_RQL |= distance_RQL >= cut
            # A padding query far behind the end of its row would see no key, and its softmax would
            # be NaN.
            hidden_RQL[..., 0] &= ~hidden_RQL.all(-1)
        mask_RQL = torch.zeros(hidden_RQL.shape, dtype=dtype, device=device)
        return mask_RQL.masked_fill_(hidden_RQL, float("-inf"))[:, None]


@dataclass(frozen=True)
class Places:
    """Positions of a sequence's tokens in the rectangles."""

    shapes: list[tuple[int, int]]
    """Number of rows and length of each rectangle."""
    token_M: Tensor
    """Token at each place; an arbitrary one at padding."""
    is_padding_M: Tensor | None
    """True for places that are padding; None if there is no padding."""
    place_N: Tensor
    """One place of each token."""
    repeated_S: Tensor
    """Tokens with several places."""
    places_SG: Tensor
    """All places of the tokens in `repeated_S`; -1 if a token has fewer than G."""

    def spread(self, states_BHND: Tensor) -> list[Tensor]:
        """Copy the states [1, heads, N, D] into one [rows, heads, length, D] per rectangle."""
        num_heads = states_BHND.shape[1]
        states_MF = _Spread.apply(states_BHND.squeeze(0).transpose(0, 1).flatten(1), self)
        parts = states_MF.split([rows * length for rows, length in self.shapes])
        parts_BHLD: list[Tensor] = []
        for part, (rows, length) in zip(parts, self.shapes, strict=True):
            parts_BHLD.append(part.view(rows, length, num_heads, -1).transpose(1, 2))
        return parts_BHLD

    def collect(self, answers: list[Tensor]) -> Tensor:
        """Copy one [rows, length, heads, D] per rectangle back to [1, N, heads, D]; each token has
        a single place."""
        tail = answers[0].shape[2:]
        answers_MF = torch.cat([answer.flatten(0, 1).flatten(1) for answer in answers])
        return _Collect.apply(answers_MF, self).unflatten(-1, tail)[None]


@dataclass(frozen=True)
class Rectangles:
    """Rectangles of one sequence, with the places of its queries and keys."""

    shapes: list[Rectangle]
    queries: Places
    keys: Places


def lay_out_rows(rows: list[Row], num_tokens: int) -> Rectangles:
    """Arrange the rows of a sequence in rectangles. Args: rows: each token is a query in exactly
    one of them."""
    groups = _alike(rows)
    shapes = []
    for group in groups:
        num_queries, num_keys = (
            max(row.num_queries for row in group),
            max(row.num_keys for row in group),
        )
        shapes.append(Rectangle(num_queries, num_keys, tuple(row.start for row in group)))
    own, seen = [], []
    for group in groups:
        own.append([row.tokens[row.start :] for row in group])
        seen.append([row.tokens for row in group])
    return Rectangles(shapes, _places(own, num_tokens), _places(seen, num_tokens))


def _alike(rows: list[Row]) -> list[list[Row]]:
    """Group the rows that share a rectangle: those with about as many queries and as many keys."""

    def fits(row: Row, other: Row) -> bool:
        pairs = ((row.num_queries, other.num_queries), (row.num_keys, other.num_keys))
        return all(min(pair) >= FULLNESS * max(pair) for pair in pairs)

    groups: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: (-row.num_queries, -row.num_keys)):
        if groups and all(fits(row, other) for other in groups[-1]):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _places(groups: list[list[Tensor]], num_tokens: int) -> Places:
    """Return the places of all tokens. Args: groups: the tokens of each row, by rectangle."""
    padded = []
    for group in groups:
        padded.append(torch.nn.utils.rnn.pad_sequence(group, batch_first=True, padding_value=-1))
    token_M = torch.cat([tokens.flatten() for tokens in padded])
    is_padding_M = token_M < 0
    place_M = (~is_padding_M).nonzero()[:, 0]
    order_M = token_M[place_M].argsort(stable=True)
    place_M = place_M[order_M]
    count_N = torch.bincount(token_M[place_M], minlength=num_tokens)
    first_N = count_N.cumsum(0) - count_N
    repeated_S = (count_N > 1).nonzero()[:, 0]
    turn_G = torch.arange(int(count_N.max()), device=token_M.device)
    index_SG = (first_N[repeated_S, None] + turn_G).clamp_max(len(place_M) - 1)
    places_SG = place_M[index_SG].masked_fill_(turn_G >= count_N[repeated_S, None], -1)
    return Places(
        shapes=[(len(tokens), tokens.shape[1]) for tokens in padded],
        token_M=token_M.clamp_min(0),
        is_padding_M=is_padding_M if is_padding_M.any() else None,
        place_N=place_M[first_N],
        repeated_S=repeated_S,
        places_SG=places_SG,
    )


class _PlacesContext(AutogradContext, Protocol):
    places: Places


class _Spread(torch.autograd.Function):
    """Autograd function that copies tokens [N, F] to places [M, F]."""

    @staticmethod
    def forward(ctx: _PlacesContext, states_NF: Tensor, places: Places) -> Tensor:
        ctx.places = places
        return states_NF.index_select(0, places.token_M)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: _PlacesContext, grad_MF: Tensor
    ) -> tuple[Tensor, None]:
        places: Places = ctx.places
        grad_NF = grad_MF.index_select(0, places.place_N)
        if len(places.repeated_S):
            grad_SGF = grad_MF.index_select(0, places.places_SG.flatten().clamp_min(0))
            grad_SGF = grad_SGF.unflatten(0, places.places_SG.shape)
            grad_SGF.masked_fill_((places.places_SG < 0)[..., None], 0)
            # The sum is rounded once, not at every place.
            sum_SF = grad_SGF.sum(1, dtype=torch.promote_types(grad_MF.dtype, torch.float32))
            grad_NF.index_copy_(0, places.repeated_S, sum_SF.to(grad_NF.dtype))
        return grad_NF, None


class _Collect(torch.autograd.Function):
    """Autograd function that copies places [M, F] back to their tokens [N, F]."""

    @staticmethod
    def forward(ctx: _PlacesContext, answers_MF: Tensor, places: Places) -> Tensor:
        ctx.places = places
        return answers_MF.index_select(0, places.place_N)

    @staticmethod
    def backward(  # type: ignore[override]
        ctx: _PlacesContext, grad_NF: Tensor
    ) -> tuple[Tensor, None]:
        places: Places = ctx.places
        grad_MF = grad_NF.index_select(0, places.token_M)
        if places.is_padding_M is not None:
            grad_MF.masked_fill_(places.is_padding_M[:, None], 0)
        return grad_MF, None
