"""Plans and images of a unified model, which draws its own prompt and plan from their tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol

from torch import Tensor

from rl_core.data.prepare.chat_template import Message, Tools
from rl_core.data.prepare.items import MediaItem
from rl_core.errors import ModelError
from rl_core.models.chat.stop_ids import configured_stop_ids
from rl_core.models.decoding.request import Sampling, StopReason
from rl_core.models.diffusion.base import Condition
from rl_core.models.diffusion.guidance import PromptConditions, has_two_halves
from rl_core.models.diffusion.levels import size_of
from rl_core.models.diffusion.policy import DiffusionPolicy
from rl_core.models.unified.base import UnifiedFamily
from rl_core.models.unified.bundle import UnifiedBundle
from rl_core.models.unified.policy import UnifiedPolicy
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.diffusion.engine import DiffusionEngine
from rl_core.rollout.diffusion.rewriting import drawing
from rl_core.rollout.engine import PolicyHolder, RolloutEngine
from schemas.sections.diffusion import DiffusionConfig
from schemas.sections.rollout import RolloutConfig
from schemas.sections.sampling import SamplingConfig

CONTEXT_IDS: Final = "context_ids"
"""Key of an item with the tokens that its image is drawn from."""


class HasTensors(Protocol):
    """A batch, here or by reference."""

    def tensor(self, name: str, /) -> Tensor:
        """Return a column."""
        ...


def contexts(plans: HasTensors) -> list[list[int]]:
    """Return the tokens of prompt and plan of each row of a text rollout (a DataProto or a
    reference), without padding."""
    ids_BL, used_BL = plans.tensor("input_ids"), plans.tensor("attention_mask").bool()
    return [ids[used].tolist() for ids, used in zip(ids_BL, used_BL, strict=True)]


def planned_drawing(item: MediaItem, uid: str, plan: str, context: list[int]) -> MediaItem:
    """Return the row of an image rollout that draws a plan for `item`.

    Args: uid: uid of the plan's row.
    """
    return {**drawing(item, uid, plan), CONTEXT_IDS: context}


class PlanChat(ChatFormat):
    """A `ChatFormat` that asks for a plan in the family's format."""

    def __init__(
        self, bundle: UnifiedBundle, template_kwargs: Mapping[str, object], stop_ids: Sequence[int]
    ) -> None:
        super().__init__(bundle.tokenizer, template_kwargs, keep_special_tokens=())
        # A plan is no turn of a conversation: it ends where the model's own configuration says.
        self.stop_ids = frozenset({bundle.tokenizer.eos_token_id, *stop_ids})
        self.family, self.size = bundle.family, bundle.size

    def encode(self, messages: list[Message], tools: Tools = ()) -> list[int]:
        """Return token ids that end where the plan begins."""
        return self.family.question(self.tokenizer, messages, self.size, self.template_kwargs)


class PlanWriter(RolloutEngine):
    """Rollout engine that writes plans with a unified model."""

    def __init__(
        self,
        backend: PolicyHolder[UnifiedPolicy, UnifiedBundle],
        config: RolloutConfig,
        env_options: Mapping[str, Mapping[str, object]],
        template_kwargs: Mapping[str, object],
        seed: int,
    ) -> None:
        super().__init__(backend, config, env_options, template_kwargs, seed)
        self.layout, self.size = backend.policy.layout, backend.bundle.size
        self.chat = PlanChat(
            backend.bundle, template_kwargs, configured_stop_ids(backend.policy.language_model)
        )

    def sampling(
        self, max_new_tokens: int, temperature: float, choice: SamplingConfig | None = None
    ) -> Sampling:
        """Return sampling options for plans; a plan whose layout follows the image's size is
        complete with its number of tokens.

        Raises: ModelError when another number is requested.
        """
        sampling = super().sampling(max_new_tokens, temperature, choice)
        layout = self.layout
        if layout is None:
            return sampling
        if max_new_tokens != layout.num_tokens:
            size = self.size
            raise ModelError(
                f"max_new_tokens is {max_new_tokens}; the plan of a picture of {size.height} x "
                f"{size.width} pixels has {layout.num_tokens} tokens: set rollout.max_new_tokens "
                "and evaluation.max_new_tokens to that"
            )
        return replace(sampling, at_limit=StopReason.EOS)


class PlanContexts:
    """Conditions of drawings: their plans, which the policy itself reads, in rollout and in
    training alike.

    Args: config: its negative prompt is used without a plan.
    """

    def __init__(self, family: UnifiedFamily, config: DiffusionConfig) -> None:
        self.family, self.config = family, config
        guided = has_two_halves(family, config.guidance_scale)
        self.negative = self._of_text(config.negative_prompt) if guided else None

    def __call__(self, items: Sequence[MediaItem]) -> list[PromptConditions | str]:
        """Return the conditions of each item, in order."""
        asked, contexts = (
            [item.get("asked", "") for item in items],
            [item.get(CONTEXT_IDS, []) for item in items],
        )
        found = self.family.plan_conditions(asked, contexts, size_of(self.config))
        conditions: list[PromptConditions | str] = []
        for one in found:
            conditions.append(one if isinstance(one, str) else PromptConditions(one, self.negative))
        return conditions

    def blank(self) -> PromptConditions:
        """Return the conditions of an empty prompt without a plan."""
        return PromptConditions(self._of_text(""), self.negative)

    def _of_text(self, text: str) -> Condition:
        return self.family.encode([text], [None], size_of(self.config))[0]


class PlanPainter(DiffusionEngine):
    """Rollout engine that draws plans with the module that wrote them; items are those of
    `planned_drawing`."""

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        assert isinstance(self.family, UnifiedFamily)
        self.conditions = PlanContexts(self.family, self.config)

    def told(
        self, policy: DiffusionPolicy, prompts: Sequence[PromptConditions]
    ) -> dict[str, Tensor]:
        """Return the policy's reading of each context, computed once for all steps."""
        assert isinstance(policy, UnifiedPolicy)
        return policy.read(super().told(policy, prompts))
