"""Reference log-probabilities of preference pairs: computed in each forward pass, or once for the
cache."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager

from rl_core.data.prepare.items import Item
from rl_core.data.store.reference_log_probs import Answers, ReferenceStore, open_store
from rl_core.data.store.views import uids_of
from rl_core.models.locate import model_identity
from rl_core.rollout.pairs import SIDES
from rl_core.runtime.home import Home
from rl_core.trainers.handles import PairEngineHandle
from rl_core.trainers.track import prompt_batch
from schemas.recipe import Recipe
from schemas.sections.preference import ReferenceMode

ENCODING_VERSION = "2"
"""Version of the tokenization of pairs; raise it when the same pairs would give other tokens."""
PAIRS_AT_ONCE = 256
"""Number of pairs per replica in one call that computes references."""


class PairReferences:
    """The reference model's log-probabilities of both answers of each pair.

    Args: engine: a PairEngine whose policy still is the reference model, or keeps a copy of it.
    needed: True if the algorithm compares with the reference at all. phase: announces a phase to
    listeners.
    """

    def __init__(
        self,
        recipe: Recipe,
        source_model: str,
        engine: PairEngineHandle,
        needed: bool,
        phase: Callable[[str], AbstractContextManager[None]],
    ) -> None:
        self.recipe, self.source_model, self.engine, self.needed = (
            recipe,
            source_model,
            engine,
            needed,
        )
        self._phase = phase
        self._stores: list[ReferenceStore] = []

    def prepare(self, *rows: Sequence[Item]) -> None:
        """Read the references of all pairs from the cache or compute them, if the recipe
        precomputes them."""
        if self.needed and self.recipe.preference.reference is ReferenceMode.PRECOMPUTED:
            self._stores = [self._store_of(items) for items in rows]

    def added_to(self, rows: Sequence[Item]) -> Sequence[Item]:
        """Return the pairs with their `reference`, if the margins need it; else unchanged."""
        if not self.needed:
            return rows
        if self._stores:
            return self.from_cache(list(rows))
        completed: list[Item] = []
        for item, said in zip(rows, self._compute(rows), strict=True):
            completed.append({**item, "reference": said})
        return completed

    def from_cache(self, items: list[Item]) -> list[Item]:
        """Return the pairs with their `reference` if `prepare` made it available; else
        unchanged."""
        if not self._stores:
            return items
        known = []
        for item in items:
            known.append(next(store for store in self._stores if item["uid"] in store))
        completed: list[Item] = []
        for item, store in zip(items, known, strict=True):
            completed.append({**item, "reference": store[item["uid"]]})
        return completed

    def _store_of(self, items: Sequence[Item]) -> ReferenceStore:
        home, recipe = Home.default(), self.recipe
        parts = {
            "encoding": ENCODING_VERSION,
            "model": model_identity(self.source_model, home.data / "memo"),
            "tokens": recipe.preference.model_dump_json(exclude={"reference"}),
            "template_kwargs": json.dumps(recipe.model.chat_template_kwargs, sort_keys=True),
            "param_dtype": recipe.fsdp.param_dtype,
            "attention": recipe.model.attention,
        }
        return open_store(home.cache, parts, uids_of(items), lambda: self._compute(items))

    def _compute(self, items: Sequence[Item]) -> Iterator[Answers]:
        at_once = PAIRS_AT_ONCE * self.recipe.placement.num_replicas
        with self._phase("reference"):
            for first in range(0, len(items), at_once):
                found = self.engine.reference(
                    prompt_batch(items[first : first + at_once])
                ).non_tensor_batch
                yield from zip(*(found[side] for side in SIDES), strict=True)
