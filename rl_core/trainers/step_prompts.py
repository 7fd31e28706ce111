"""The prompts of each step: new ones from the data source, beside groups that the step before left
unfinished."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rl_core.data.order.prompt_source import DataSource
from rl_core.data.prepare.items import Item
from rl_core.data_proto import DataProto
from rl_core.errors import DataError
from rl_core.rollout.carried import AWAITED, BEGUN
from rl_core.rollout.episodes.unfinished import Unfinished
from rl_core.rollout.sample_ids import groups_of
from rl_core.trainers.dealing import dealt
from rl_core.trainers.track import prompt_batch
from schemas.recipe import Recipe

T = TypeVar("T")
PICTURE = 1024
"""Characters of text that take about as many tokens as a picture."""


def drawn_at_once(recipe: Recipe) -> int:
    """Return the number of prompts that a source gives at once. Groups that are carried over are
    drawn once, those that are given up are drawn for nothing."""
    extra = 0 if recipe.rollout.carry_over else recipe.rollout.extra_prompts
    return recipe.training.prompts_per_step + extra


class StepPrompts:
    """Prompts of one step after the other.

    With `rollout.carry_over` the first step of an iteration draws more prompts than it trains on,
    and the last one fewer, as no group is under way at a checkpoint. An iteration thereby draws
    what it would draw without.
    """

    def __init__(self, recipe: Recipe, source: DataSource[Item]) -> None:
        self.recipe, self.source = recipe, source
        self.clear()

    def clear(self) -> None:
        """Forget what is drawn and not sampled, and what is unfinished."""
        self._drawn: list[Item] = []
        self._unfinished: list[tuple[Item, Unfinished]] = []

    def next(self, step: int, attempt: int = 0) -> DataProto:
        """Return the prompts of a step, counted from 0. Args: attempt: number of the rollout in its
        step. Raises: DataError when the source gives too many or too few."""
        if not self.recipe.rollout.carry_over:
            return prompt_batch(self._even(self._draw()), attempt)
        training = self.recipe.training
        is_last = (step + 1) % training.steps_per_iteration == 0
        num_groups = training.prompts_per_step
        num_groups += 0 if is_last else self.recipe.rollout.extra_prompts
        while len(self._drawn) < num_groups - len(self._unfinished):
            self._drawn += self._draw()
        num_new = num_groups - len(self._unfinished)
        new, self._drawn = self._drawn[:num_new], self._drawn[num_new:]
        return self._dealt(self._even(new), is_last)

    def leave(self, prompts: DataProto, unfinished: Sequence[Unfinished]) -> None:
        """Take note of the groups that the rollout of a step left to the next one."""
        items = dict(zip(groups_of(prompts), prompts.non_tensor_batch["item"], strict=True))
        self._unfinished = [(items[one.group], one) for one in unfinished]

    def _draw(self) -> list[Item]:
        items, expected = self.source.next_batch(), drawn_at_once(self.recipe)
        if len(items) != expected:
            raise DataError(
                f"data.source: {type(self.source).__name__} gave {len(items)} prompts for a step; "
                f"expected {expected} (training.prompts_per_step)"
            )
        return items

    @property
    def _ranks(self) -> int:
        """Number of ranks that sample different prompts."""
        placed = self.recipe.placement
        return placed.rollout_devices or placed.num_replicas

    def _even(self, items: Sequence[Item]) -> list[Item]:
        """Return prompts in an order in which each rank gets as many, with about as much to read.
        How long replies will be nobody knows; prompts of equal length stay where they are."""
        if len(items) % self._ranks:
            return list(items)
        sizes = [_size(item) for item in items]
        return [items[number] for number in dealt(sizes, self._ranks)]

    def _dealt(self, new: Sequence[Item], is_last: bool) -> DataProto:
        """Return a batch in which each rank that samples gets as many of the unfinished groups, of
        about as many tokens to go, before the new ones."""
        ranks = self._ranks
        left, self._unfinished = self._unfinished, []
        if len(left) % ranks == 0:
            most = self.recipe.rollout.max_new_tokens
            to_go = [_tokens_to_go(unfinished, most) for _, unfinished in left]
            left = [left[number] for number in dealt(to_go, ranks)]
        rows: list[tuple[Item, Unfinished | None]] = []
        for rank in range(ranks):
            rows += _part(left, rank, ranks)
            rows += [(item, None) for item in _part(new, rank, ranks)]
        prompts = prompt_batch([item for item, _ in rows])
        prompts = prompts.union(DataProto.from_dict(non_tensors={BEGUN: [one for _, one in rows]}))
        prompts.meta_info[AWAITED] = is_last
        return prompts


def _size(item: Item) -> int:
    """Return a measure of a row's tokens that needs no tokenizer."""
    texts = [item.get(name, "") for name in ("prompt", "chosen", "rejected")]
    return sum(len(str(text)) for text in texts) + PICTURE * len(item.get("media_refs", ()))


def _tokens_to_go(unfinished: Unfinished, max_new_tokens: int) -> int:
    """Return how many tokens a group still gets at most."""
    tokens = 0
    for begun in unfinished.begun:
        if begun is None:
            tokens += max_new_tokens
        elif not begun.has_ended:
            tokens += max_new_tokens - len(begun.reply.token_ids)
    return tokens


def _part(rows: Sequence[T], rank: int, ranks: int) -> Sequence[T]:
    return rows[len(rows) * rank // ranks : len(rows) * (rank + 1) // ranks]
