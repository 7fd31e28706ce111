"""The wiring for pairs of answers: no rollout, since the rows hold the answers; everything after it is the loop's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from rl_core.algorithms.preference import Preference
from rl_core.data.order.pair_rows import PairRows
from rl_core.data.store.reference_log_probs import Answers, ReferenceStore, open_store
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef, Remote, placement, remote
from rl_core.errors import RecipeError
from rl_core.models.bundle import ModelBundle
from rl_core.models.locate import model_identity
from rl_core.ranks.rank_info import TrainTopology
from rl_core.rollout.pairs import SCORES, SIDES, PairEngine
from rl_core.runtime.home import Home
from rl_core.trainers.base import prompt_batch
from rl_core.trainers.text import TextTrainer
from schemas.placement import ROWS_OF_A_PASS
from schemas.preference import ReferenceMode

ENCODING_VERSION = "2"
"""Raised whenever the same pairs would become other tokens."""
PAIRS_AT_ONCE = 256
"""Pairs whose reference is computed that are on a replica at the same time."""


class PreferenceTrainer(TextTrainer):
    """MPO and its siblings on a language model: chosen and rejected in one forward, delta owned here."""

    track: ClassVar = "pairs"
    bundle_class: ClassVar = ModelBundle

    @property
    def temperature(self) -> float:
        """1: answers that nobody sampled are judged by the model's own distribution."""
        return 1.0

    def keeps_reference(self, algorithm: Any) -> bool:
        """Whether the workers need the model before training; not when all it says is in the cache."""
        if not isinstance(algorithm, Preference):
            raise RecipeError(
                f"algorithm {type(algorithm).__name__} does not learn from pairs; use mpo, dpo, ipo, simpo, orpo or kto"
            )
        return algorithm.needs_reference and not self._precomputed

    @property
    def held_out_scores(self) -> tuple[str, ...]:
        """The margins, of which only the first needs no reference."""
        return SCORES if self.algorithm.needs_reference else SCORES[:1]

    @property
    def algorithm(self) -> Preference:
        """The driver's algorithm, which owns delta."""
        return self.tracks[self.track].algorithm

    @property
    def _precomputed(self) -> bool:
        return self.recipe.preference.reference is ReferenceMode.PRECOMPUTED

    def build(self) -> None:
        """One block in which all components share a process per device; then the reference, while it is the policy."""
        recipe, placed = self.recipe, self.recipe.placement
        topology = TrainTopology(tp_size=placed.tp_size, sp_size=placed.sp_size)
        with placement(self.pool, topology=topology) as whole:
            self.training_side()
            self.engine: Remote = remote(
                PairEngine,
                self.backend,
                recipe.preference,
                recipe.model.chat_template_kwargs,
                beta=self.algorithm.config.beta,
                micro_batch_size=placed.micro_batch_size or ROWS_OF_A_PASS,
            )
        self.groups = [whole]
        self._references: list[ReferenceStore] = []

    def prepare(self, held_out: Sequence[dict[str, Any]]) -> None:
        """Where the recipe wants it, compute the reference of all pairs, or find it in the cache."""
        if self._precomputed and self.algorithm.needs_reference:
            self._references = [self._reference_of(items) for items in (self.source_items, held_out)]

    def with_reference(self, held_out: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Pairs with the reference's log-probabilities of both answers, where the margins need them."""
        if not self.algorithm.needs_reference:
            return held_out
        if self._references:
            return self._with_references(list(held_out))
        return [
            item | {"reference": said} for item, said in zip(held_out, self._compute_references(held_out), strict=True)
        ]

    def rollout(self, prompts: DataProto, attempt: int = 0) -> dict[str, DataProtoRef]:
        """Both answers of each pair, as they are."""
        items = self._with_references(list(prompts.non_tensor_batch["item"]))
        return {self.track: self.engine.rollout(prompt_batch(items))}

    def play_held_out(self, prompts: DataProto, max_new_tokens: int) -> DataProtoRef:
        """Which answer of each pair the model prefers; nothing is sampled."""
        items = self._with_references(list(prompts.non_tensor_batch["item"]))
        return self.engine.evaluate(prompt_batch(items), self.algorithm.needs_reference)

    def describe(self, rollout: DataProtoRef) -> dict[str, float]:
        """Length of the answers, and pairs that teach nothing."""
        lengths_B = rollout.tensor("num_tokens").float()
        reasons = list(rollout.non_tensor_batch["stop_reason"][::2])
        return {
            "answer_length_mean": float(lengths_B.mean()),
            "answer_length_max": float(lengths_B.max()),
            "overlong_pairs": float(reasons.count("length")),
            "equal_pairs": float(reasons.count("equal")),
        }

    def _with_references(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The items with what the reference says of their answers, where that is in the cache."""
        if not self._references:
            return items
        known = [next(store for store in self._references if item["uid"] in store) for item in items]
        return [item | {"reference": store[item["uid"]]} for item, store in zip(items, known, strict=True)]

    def _reference_of(self, items: Sequence[dict[str, Any]]) -> ReferenceStore:
        home, recipe = Home.default(), self.recipe
        parts = {
            "encoding": ENCODING_VERSION,
            "model": model_identity(self.source_model, home.data / "memo"),
            "tokens": recipe.preference.model_dump_json(exclude={"reference"}),
            "template_kwargs": json.dumps(recipe.model.chat_template_kwargs, sort_keys=True),
            "param_dtype": recipe.fsdp.param_dtype,
            "attention": recipe.model.attention,
        }
        uids = [item["uid"] for item in items] if not isinstance(items, PairRows) else items.uids
        return open_store(home.cache, parts, uids, lambda: self._compute_references(items))

    def _compute_references(self, items: Sequence[dict[str, Any]]) -> Iterator[Answers]:
        at_once = PAIRS_AT_ONCE * self.recipe.placement.num_replicas
        with self._phase("reference"):
            for first in range(0, len(items), at_once):
                found = self.engine.reference(prompt_batch(items[first : first + at_once])).non_tensor_batch
                yield from zip(*(found[side] for side in SIDES), strict=True)
