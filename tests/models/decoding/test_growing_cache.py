"""The decoding cache holds what transformers' own would, however long replies get and whichever
rows leave."""

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicSlidingWindowLayer

from rl_core.models.decoding.growing_cache import ROOM, GrowingLayer, grow, is_plain

HEADS, WIDTH = 2, 4


def states(rows: int, length: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values [R, heads, length, D]."""
    return tuple(torch.randn(rows, HEADS, length, WIDTH, generator=generator) for _ in range(2))  # type: ignore[return-value]


def test_rows_are_what_a_copying_cache_holds():
    generator = torch.Generator().manual_seed(0)
    counts_P = torch.tensor([2, 1, 3])
    caches = [DynamicCache() for _ in range(2)]
    for layer in range(2):
        prompt = states(3, 5, generator)
        for cache in caches:
            cache.update(*prompt, layer)
    grown, copied = caches
    grow(grown, counts_P)
    copied.batch_repeat_interleave(counts_P)
    assert all(isinstance(layer, GrowingLayer) for layer in grown.layers)
    rows = int(counts_P.sum())
    leaving = {10: torch.tensor([0, 2, 3, 5]), ROOM + 3: torch.tensor([1, 3])}
    for step in range(2 * ROOM + 7):
        if step in leaving:
            for cache in caches:
                cache.batch_select_indices(leaving[step])
            rows = len(leaving[step])
        for layer in range(2):
            token = states(rows, 1, generator)
            for got, expected in zip(
                grown.update(*token, layer), copied.update(*token, layer), strict=True
            ):
                assert torch.equal(got, expected)
    assert grown.get_seq_length() == copied.get_seq_length() == 5 + 2 * ROOM + 7


def test_a_cache_in_which_a_token_does_not_see_all_says_so():
    plain, windowed = DynamicCache(), DynamicCache()
    for cache in (plain, windowed):
        cache.update(*states(1, 5, torch.Generator().manual_seed(0)), 0)
    window = DynamicSlidingWindowLayer(4)
    window.update(*states(1, 5, torch.Generator().manual_seed(0)))
    windowed.layers.append(window)
    assert is_plain(plain) and not is_plain(windowed)
    grow(windowed, torch.tensor([2]))
    assert [len(cached) for cached, *_ in windowed] == [2, 2]
