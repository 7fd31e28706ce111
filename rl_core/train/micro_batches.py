"""Division of a mini-batch into micro-batches, the rows that share a forward pass.

Every rank must run the same number of passes, since each gathers parameters from all ranks. A rank
with fewer rows than others therefore runs idle passes: one row without a response.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from rl_core.algorithms.terms import Denominators
from rl_core.data_proto import DataProto

Rows = list[int]
"""Indices in a shard, ascending; empty for an idle pass."""
SEEN_AGAIN = 8
"""Number of tokens of a shared prompt that cost as much as one: their keys are copied next to the
row's own."""


@dataclass(frozen=True)
class MiniBatch:
    """The rows of one optimizer step on this rank."""

    micro_batches: list[Rows]
    """Micro-batches, the same number on every rank."""
    denominators: Denominators
    """Counts over all ranks."""

    @property
    def is_empty(self) -> bool:
        """True if no rank has anything to train on."""
        return self.denominators.num_tokens == 0


@dataclass(frozen=True)
class Lengths:
    """Costs of rows in a pass, in tokens."""

    alone_B: list[int]
    """Cost of each row alone."""
    group_B: list[int] | None = None
    """Group of each row; adjacent rows of a group share their prompt. None: no rows do."""
    prompt_B: list[int] | None = None
    """Cost of the prompt in each row."""

    def saved(self, former: int, row: int) -> int:
        """Return the cost that a row saves directly behind another one."""
        if (
            self.group_B is None
            or self.prompt_B is None
            or self.group_B[former] != self.group_B[row]
        ):
            return 0
        return self.prompt_B[row] - self.prompt_B[row] // SEEN_AGAIN

    def of(self, rows: Rows) -> int:
        """Return the cost of rows in one pass."""
        return sum(self.alone_B[row] for row in rows) - sum(
            self.saved(*pair) for pair in pairwise(rows)
        )


def trained_rows(mask_BT: Tensor) -> Rows:
    """Return the rows with at least one action. Padding and failed rows have none and cannot change
    anything."""
    return (mask_BT != 0).any(-1).nonzero()[:, 0].tolist()


def units_of(rows: Rows, rows_per_unit: int) -> list[Rows]:
    """Return units of adjacent rows, such as the two of a pair. Raises: ValueError when some rows
    are left over."""
    if len(rows) % rows_per_unit:
        raise ValueError(
            f"{len(rows)} rows to train on do not make whole units of {rows_per_unit} adjacent rows"
        )
    return [rows[start : start + rows_per_unit] for start in range(0, len(rows), rows_per_unit)]


def flatten(units: list[Rows]) -> Rows:
    """Return the rows of some units."""
    return [row for unit in units for row in unit]


def split_evenly(rows: Rows, num_parts: int) -> list[Rows]:
    """Return consecutive parts whose sizes differ by at most one, the larger ones first."""
    size, larger = divmod(len(rows), num_parts)
    bounds = [part * size + min(part, larger) for part in range(num_parts + 1)]
    return [rows[start:stop] for start, stop in pairwise(bounds)]


def by_row_count(rows: Rows, size: int) -> list[Rows]:
    """Return consecutive parts of at most `size` rows."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def by_token_count(
    rows: Rows, lengths_B: list[int], max_tokens: int, at_least: int = 0
) -> list[Rows]:
    """Return the fewest parts, but at least `at_least`, of at most `max_tokens` tokens, filled
    evenly and heaviest first.

    A row longer than `max_tokens` has its own part; there are never more parts than rows.
    """
    fill = partial(_fill_evenly, rows, lengths_B)
    return _cut_by_tokens(
        fill, rows, lambda part: sum(lengths_B[row] for row in part), max_tokens, at_least
    )


def in_order_by_token_count(
    rows: Rows,
    lengths_B: list[int],
    max_tokens: int,
    at_least: int = 0,
    saved: Callable[[int, int], int] = lambda former, row: 0,
) -> list[Rows]:
    """Return consecutive parts like `by_token_count`, which keeps adjacent rows together and fills
    less evenly.

    Args: saved: number of tokens that the second row saves directly behind the first.
    """
    behind_B = [0, *(saved(*pair) for pair in pairwise(rows))]
    added = [lengths_B[row] - less for row, less in zip(rows, behind_B, strict=False)]

    def weigh(part: Rows) -> int:
        return sum(lengths_B[row] for row in part) - sum(saved(*pair) for pair in pairwise(part))

    return _cut_by_tokens(partial(_fill_in_order, rows, added), rows, weigh, max_tokens, at_least)


def _cut_by_tokens(
    fill: Callable[[int], list[Rows]],
    rows: Rows,
    weigh: Callable[[Rows], int],
    max_tokens: int,
    at_least: int,
) -> list[Rows]:
    def fit(parts: list[Rows]) -> bool:
        return all(len(part) == 1 or weigh(part) <= max_tokens for part in parts)

    if not rows:
        return []
    least = min(max(-(-weigh(rows) // max_tokens), 1), len(rows))
    parts = next(cut for num_parts in range(least, len(rows) + 1) if fit(cut := fill(num_parts)))
    wanted = min(at_least, len(rows))
    if len(parts) < wanted:
        # Other ranks wait for exactly this number of passes, and `fill` may exceed the limit with
        # more parts.
        parts = more if fit(more := fill(wanted)) else _split(parts, weigh, wanted)
    return sorted(parts, key=lambda part: -weigh(part))


def _split(parts: list[Rows], weigh: Callable[[Rows], int], num_parts: int) -> list[Rows]:
    """Return the parts with the heaviest ones halved until their number is reached."""
    while len(parts) < num_parts:
        heaviest = max((part for part in parts if len(part) > 1), key=weigh)
        parts = [part for part in parts if part is not heaviest] + split_evenly(heaviest, 2)
    return parts


def _fill_evenly(rows: Rows, lengths_B: list[int], num_parts: int) -> list[Rows]:
    """Assign the longest remaining row to the lightest part (longest processing time first, Graham
    1969)."""
    parts: list[Rows] = [[] for _ in range(num_parts)]
    loads = [0] * num_parts
    for row in sorted(rows, key=lambda row: (-lengths_B[row], row)):
        lightest = loads.index(min(loads))
        parts[lightest].append(row)
        loads[lightest] += lengths_B[row]
    return [sorted(part) for part in parts]


def _fill_in_order(rows: Rows, added: list[int], num_parts: int) -> list[Rows]:
    """Assign a row to the part of its middle token, if the tokens were cut evenly; no part stays
    empty.

    Args: added: tokens that each row adds to those before it.
    """
    total = sum(added)
    parts: list[Rows] = [[]]
    before = 0
    for index, (row, own) in enumerate(zip(rows, added, strict=True)):
        wanted = (2 * before + own) * num_parts // (2 * total)
        rows_left, parts_left = len(rows) - index, num_parts - len(parts)
        if parts[-1] and (wanted >= len(parts) or rows_left <= parts_left) and parts_left:
            parts.append([])
        parts[-1].append(row)
        before += own
    return parts


def take(shard: DataProto, rows: Rows) -> DataProto:
    """Return a micro-batch of a shard, without columns that are padding in all its rows."""
    if rows:
        return trim_padding(shard[rows])
    return idle_row(shard)


def idle_row(shard: DataProto) -> DataProto:
    """Return one row of a single token that does not train, for a pass that only keeps the ranks in
    step."""
    row = shard[[0]]
    assert row.batch is not None
    num_response = row.tensor("response_mask").shape[1]
    attention = torch.zeros_like(row.tensor("attention_mask"))
    attention[:, -num_response - 1] = 1
    row.batch["attention_mask"] = attention
    row.batch["response_mask"] = torch.zeros_like(row.tensor("response_mask"))
    row.batch["position_ids"] = torch.zeros_like(row.tensor("position_ids"))
    if "media" in row.non_tensor_batch:
        row.non_tensor_batch["media"][0] = None
    return trim_padding(row)


def trim_padding(micro: DataProto) -> DataProto:
    """Cut columns that are padding in every row: left of all prompts, right of all responses."""
    assert micro.batch is not None
    attention_BL, mask_BT = micro.tensor("attention_mask"), micro.tensor("response_mask")
    num_response = mask_BT.shape[1]
    num_prompt = attention_BL.shape[1] - num_response
    used_L = attention_BL.any(0)
    first = int(used_L[:num_prompt].int().argmax())
    last = num_prompt + max(1, int(used_L[num_prompt:].sum()))
    tensors = {}
    for key, value in micro.batch.items():
        if value.dim() == 2 and value.shape[1] == attention_BL.shape[1]:
            tensors[key] = value[:, first:last]
        elif value.dim() == 2 and value.shape[1] == num_response:
            tensors[key] = value[:, : last - num_prompt]
        else:
            tensors[key] = value
    return DataProto.from_dict(tensors, micro.non_tensor_batch, micro.meta_info)
