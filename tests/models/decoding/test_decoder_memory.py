"""Attention over prompts that siblings share is attention over whole rows, whichever rows leave."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rl_core.models.decoding.decoder_memory import SAVED_KEYS, SharedPrompts, WholeRows, memory_of

KEYS, QUERIES, SIZE, LAYERS = 2, 3, 16, 2
LENGTHS = (7, 3, 5)


def layers(generator: torch.Generator, dtype: torch.dtype, width: int = 7) -> list[DynamicLayer]:
    """Of a cache after the prefill of three prompts."""
    cache = DynamicCache()
    for index in range(LAYERS):
        keys, values = (
            torch.randn(3, KEYS, width, SIZE, generator=generator).to(dtype) for _ in range(2)
        )
        cache.update(keys, values, index)
    return cache.layers  # type: ignore[return-value]


def attention(width: int = 7) -> torch.Tensor:
    return (torch.arange(width) >= width - torch.tensor(LENGTHS)[:, None]).long()


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 0.02)])
@pytest.mark.parametrize("counts", [(4, 4, 4), (1, 5, 2)])
def test_sharing_changes_nothing(dtype: torch.dtype, most: float, counts: tuple[int, ...]):
    ours, whole = (
        kind(layers(torch.Generator().manual_seed(0), dtype), torch.tensor(counts), attention())
        for kind in (SharedPrompts, WholeRows)
    )
    generator, rows = torch.Generator().manual_seed(1), sum(counts)
    # First two leave a prompt with one row less than before or none, then all but one of them go.
    leaving = {
        2: torch.tensor([row for row in range(rows) if row not in (0, 3)]),
        5: torch.tensor([1]),
    }
    for step in range(80):
        if step in leaving:
            for memory in (ours, whole):
                memory.select(leaving[step])
            rows = len(leaving[step])
        for memory in (ours, whole):
            memory.begin()
        for layer in range(LAYERS):
            query = 3 * torch.randn(rows, KEYS, QUERIES, SIZE, generator=generator)
            added = [torch.randn(rows, KEYS, SIZE, generator=generator) for _ in range(2)]
            given = [one.to(dtype) for one in (query, *added)]
            seen, expected = (memory.attend(layer, *given, 0.5) for memory in (ours, whole))
            assert seen.dtype == dtype and seen.shape == expected.shape
            assert (seen - expected).abs().max() <= most * expected.abs().max()


def test_only_long_prompts_of_many_replies_are_shared():
    def chosen(count: int, width: int) -> type:
        generator = torch.Generator().manual_seed(0)
        return type(
            memory_of(
                layers(generator, torch.float32, width), torch.tensor([count] * 3), attention(width)
            )
        )

    assert chosen(1, 10 * SAVED_KEYS) is WholeRows
    assert chosen(8, SAVED_KEYS) is WholeRows
    assert chosen(2, 2 * SAVED_KEYS) is chosen(8, 2 * SAVED_KEYS) is SharedPrompts


def test_the_cache_is_not_held_twice():
    for kind in (SharedPrompts, WholeRows):
        given = layers(torch.Generator().manual_seed(0), torch.float32)
        kind(given, torch.tensor([2, 2, 2]), attention())
        assert not given
