"""Steps of a plain decoder as CUDA graphs: recorded once, and then started by a single call.

A token is a few hundred small kernels, which take a GPU less time than a CPU takes to launch them.
A graph launches them all, with the same memory every time: keys and values are in buffers of a
fixed length, and the index of the next ones is itself in memory. A step is recorded again when the
buffer is full, and when half of the rows have finished; until then those stay in the batch, and
their results are ignored.

Axes: P prompts, R rows of the batch, K key heads, G query heads of each, D features of a head, H
hidden features, L positions of a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers.cache_utils import Cache

from rl_core.errors import ModelError
from rl_core.models.decoding.decoder_memory import attention_mask
from rl_core.models.decoding.growing_cache import FilledLayer, plain_layers
from rl_core.models.decoding.plain_decoder import PlainDecoder

if TYPE_CHECKING:
    pass

ROOM = 128
"""Number of tokens by which buffers grow; attention reads whole buffers."""
ASKS_THE_PROCESSOR = {"dynamic", "longrope"}
"""Kinds of rotary embeddings that depend on the rows' lengths on the CPU, which a graph cannot
read."""
_latest: torch.cuda.CUDAGraph | None = None
"""Latest graph, kept so that the next one can reuse its memory."""


def can_be_graphed(plain: PlainDecoder) -> bool:
    """Return True if a step consists of the same kernels every time."""
    return getattr(plain.model.rotary_emb, "rope_type", "default") not in ASKS_THE_PROCESSOR


class GraphedSteps:
    """Reads tokens through graphs of a plain decoder.

    Args: cache: cache after the prefill; it is consumed.
    """

    def __init__(
        self, plain: PlainDecoder, cache: Cache, counts_P: Tensor, attention_PL: Tensor
    ) -> None:
        self.plain, self.memory = plain, FixedRows(plain_layers(cache), counts_P, attention_PL)
        self.kept = torch.arange(int(counts_P.sum()), device=counts_P.device)
        """Batch indices of the rows that have not finished."""
        self.tokens_R = torch.zeros_like(self.kept)
        self.positions_R1 = self.tokens_R[:, None].clone()
        self.hidden_RH = torch.empty(0)
        self._replay: Callable[[], None] | None = None
        self._is_warm = False

    def step(self, tokens_R: Tensor, positions_R1: Tensor) -> Tensor:
        """Append a token to each row. Returns: its hidden states after the last norm, [R, H]."""
        if self.memory.is_full:
            self.memory.grow()
            self._replay = None
        self.tokens_R.index_copy_(0, self.kept, tokens_R)
        self.positions_R1.index_copy_(0, self.kept, positions_R1)
        if not self._is_warm:
            # What libraries set up at their first call must not be part of a graph.
            self._run()
            self._is_warm = True
        else:
            self._replay = self._replay or recorded(self._run)
            self._replay()
        self.memory.length += 1
        return self.hidden_RH.index_select(0, self.kept)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, ascending."""
        self.kept = self.kept[rows]
        if 2 * len(self.kept) <= len(self.tokens_R):
            self.memory.select(self.kept)
            self.tokens_R, self.positions_R1 = (
                self.tokens_R[self.kept],
                self.positions_R1[self.kept],
            )
            self.kept = torch.arange(len(rows), device=rows.device)
            self._replay = None

    def _run(self) -> None:
        self.hidden_RH = self.plain.step(self.tokens_R, self.positions_R1, self.memory)


class FixedRows:
    """Keys and values of each row in a buffer of fixed length, the prompt's first.

    Args: layers: `DynamicLayer`s of a cache after the prefill; they are consumed. attention_PL:
    mask of tokens.
    """

    def __init__(self, layers: list[FilledLayer], counts_P: Tensor, attention_PL: Tensor) -> None:
        self.length = attention_PL.shape[1]
        """Number of positions in use."""
        # Attention wants a mask whose rows are a multiple of 8 long.
        self.capacity = (self.length // ROOM + 1) * ROOM
        self.place = torch.tensor([self.length - 1], device=counts_P.device)
        """Position of the latest token."""
        mask_R11L = attention_mask(attention_PL, layers[0].keys.dtype).repeat_interleave(
            counts_P, 0
        )
        self.mask_R11L = _masked(mask_R11L, self.capacity)
        self.layers: list[tuple[Tensor, Tensor]] = []
        while layers:
            layer = layers.pop(0)
            both = (states.repeat_interleave(counts_P, 0) for states in (layer.keys, layer.values))
            self.layers.append(_roomy(both, self.capacity))

    @property
    def is_full(self) -> bool:
        """True if there is no room for another token."""
        return self.length == self.capacity

    def begin(self) -> None:
        """Extend every row by one token."""
        self.place.add_(1)
        self.mask_R11L.index_fill_(3, self.place, 0.0)

    def attend(
        self, layer: int, query_RKGD: Tensor, key_RKD: Tensor, value_RKD: Tensor, scale: float
    ) -> Tensor:
        """Add the token's keys and values. Returns: its attention result, [R, K, G, D]."""
        keys_RKLD, values_RKLD = self.layers[layer]
        keys_RKLD.index_copy_(2, self.place, key_RKD[:, :, None])
        values_RKLD.index_copy_(2, self.place, value_RKD[:, :, None])
        return scaled_dot_product_attention(
            query_RKGD, keys_RKLD, values_RKLD, self.mask_R11L, scale=scale
        )

    def grow(self) -> None:
        """Make room for more tokens."""
        self.capacity += ROOM
        self.mask_R11L = _masked(self.mask_R11L, self.capacity)
        for index, layer in enumerate(self.layers):
            self.layers[index] = _roomy(layer, self.capacity)

    def select(self, rows: Tensor) -> None:
        """Keep these rows."""
        self.mask_R11L = self.mask_R11L[rows]
        for index, (keys, values) in enumerate(self.layers):
            self.layers[index] = keys[rows], values[rows]


def recorded(run: Callable[[], None]) -> Callable[[], None]:
    """Record the GPU work of `run`, and return a function that repeats it with the same memory.

    Graphs share their memory: only the latest may still be replayed. Raises: ModelError when `run`
    does something that cannot be recorded, such as reading a number from the GPU.
    """
    global _latest
    graph, stream, current = torch.cuda.CUDAGraph(), _stream(), torch.cuda.current_stream()
    stream.wait_stream(current)
    with torch.cuda.stream(stream):
        # Other threads (NCCL's, those of scorers) may go on meanwhile. `torch.cuda.graph` would
        # give all memory that is cached back first, which training then has to ask for again.
        graph.capture_begin(pool=_latest and _latest.pool(), capture_error_mode="thread_local")
        try:
            run()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            with suppress(RuntimeError):
                graph.capture_end()
            reason = str(error).strip().splitlines()[0]
            raise ModelError(
                f"a decoding step cannot be recorded as a CUDA graph ({reason}); set "
                "rollout.cuda_graphs=false"
            ) from error
        graph.capture_end()
    current.wait_stream(stream)
    _latest = graph
    return graph.replay


@cache
def _stream() -> torch.cuda.Stream:
    """Return the stream on which all graphs are recorded: memory freed by one stream is not given
    to another."""
    return torch.cuda.Stream()


def _roomy(both: Iterable[Tensor], capacity: int) -> tuple[Tensor, Tensor]:
    """Return keys and values with room behind them, whose content is ignored but must be
    numbers."""
    keys, values = (pad(states, (0, 0, 0, capacity - states.shape[2])) for states in both)
    return keys, values


def _masked(mask_R11L: Tensor, capacity: int) -> Tensor:
    return pad(mask_R11L, (0, capacity - mask_R11L.shape[3]), value=float("-inf")).contiguous()
