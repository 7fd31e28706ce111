"""Where tokens stand in rectangles, and what is seen there."""

import torch

from rl_core.kernels.ragged_rows import Rectangle, Row, lay_out_rows

CPU = torch.device("cpu")


def rows() -> list[Row]:
    """Two prompts of 3 and 2 tokens; the first is answered twice, the second once and at length."""
    first, second = torch.arange(3), torch.arange(3, 5)
    return [
        Row(first, 0),
        Row(second, 0),
        Row(torch.cat([first, torch.arange(5, 9)]), 3),
        Row(torch.cat([first, torch.arange(9, 12)]), 3),
        Row(torch.cat([second, torch.arange(12, 32)]), 2),
    ]


def test_rows_of_like_lengths_share_a_rectangle() -> None:
    placed = lay_out_rows(rows(), 32)
    shapes = [(len(shape.starts), shape.num_queries, shape.num_keys) for shape in placed.shapes]
    assert shapes == [(1, 20, 22), (2, 4, 7), (1, 3, 3), (1, 2, 2)]
    assert placed.queries.shapes == [(1, 20), (2, 4), (1, 3), (1, 2)]


def test_each_token_asks_once_and_is_seen_wherever_it_stands() -> None:
    placed = lay_out_rows(rows(), 32)
    queries, keys = placed.queries, placed.keys
    assert torch.equal(queries.token_M[queries.place_N], torch.arange(32))
    assert torch.equal(keys.token_M[keys.place_N], torch.arange(32))
    assert len(queries.repeated_S) == 0
    assert keys.repeated_S.tolist() == [0, 1, 2, 3, 4]
    assert (keys.places_SG >= 0).sum(1).tolist() == [3, 3, 3, 2, 2]
    states = torch.arange(32.0)[None, None, :, None].requires_grad_()
    spread = keys.spread(states)
    assert spread[1][1, 0, :, 0].tolist()[:6] == [0, 1, 2, 9, 10, 11]
    used = [torch.ones_like(part) for part in spread]
    used[1][1, :, 6] = 0
    (counts,) = torch.autograd.grad(spread, states, used)
    assert counts.flatten().tolist() == [3.0] * 3 + [2.0] * 2 + [1.0] * 27


def test_a_query_sees_itself_and_what_is_before_it_within_the_window() -> None:
    assert Rectangle(4, 4, (0, 0)).mask(None, torch.float32, CPU) is None
    assert Rectangle(4, 4, (0, 0)).mask(4, torch.float32, CPU) is None
    mask = Rectangle(2, 5, (3, 1)).mask(None, torch.float32, CPU)
    assert mask is not None
    assert (mask == 0).long().flatten(1, 2).tolist() == [
        [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]],
        [[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]],
    ]
    cut = Rectangle(4, 4, (0,)).mask(2, torch.float32, CPU)
    assert cut is not None
    assert (cut[0, 0] == 0).long().tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]


def test_padding_far_behind_the_end_of_a_row_still_sees_something() -> None:
    """A softmax over nothing is not a number, and would spoil the gradients of all keys."""
    mask = Rectangle(4, 6, (2, 5)).mask(2, torch.float32, CPU)
    assert mask is not None
    assert bool((mask == 0).any(-1).all())
