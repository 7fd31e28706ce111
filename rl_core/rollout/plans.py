"""Between a plan and its picture: a unified model draws what it wrote itself, prompt and plan as they are in tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_core.models.diffusion.base import Condition
from rl_core.models.diffusion.guidance import PromptConditions, has_two_halves
from rl_core.models.diffusion.levels import size_of
from rl_core.models.unified.compact import CONTEXT, CompactUnified
from rl_core.rollout.diffusion import DiffusionEngine
from rl_core.rollout.rewriting import drawing
from schemas.diffusion import DiffusionConfig

CONTEXT_IDS = "context_ids"
"""Key of an item: the tokens that its picture is drawn from."""


def contexts(plans: Any) -> list[list[int]]:
    """Tokens of prompt and plan of each row of a text rollout (a DataProto or a reference), without padding."""
    ids_BL, used_BL = plans.tensor("input_ids"), plans.tensor("attention_mask").bool()
    return [ids[used].tolist() for ids, used in zip(ids_BL, used_BL, strict=True)]


def planned_drawing(item: Mapping[str, Any], uid: str, plan: str, context: list[int]) -> dict[str, Any]:
    """The row of an image rollout that draws a plan where `item` asked. Args: uid: of the plan's row."""
    return drawing(item, uid, plan) | {CONTEXT_IDS: context}


class PlanContexts:
    """The conditions of drawings: their tokens, which the policy itself reads, in rollout and in training alike.

    Args: config: its negative prompt is read without a plan.
    """

    def __init__(self, family: CompactUnified, config: DiffusionConfig) -> None:
        self.family, self.config = family, config
        guided = has_two_halves(family, config.guidance_scale)
        self.negative = self._of_text(config.negative_prompt) if guided else None

    def __call__(self, items: Sequence[Mapping[str, Any]]) -> list[PromptConditions | str]:
        """One for each item, in order."""
        return [
            PromptConditions(Condition({CONTEXT: torch.tensor(item[CONTEXT_IDS])}), self.negative) for item in items
        ]

    def blank(self) -> PromptConditions:
        """Of no prompt and no plan."""
        return PromptConditions(self._of_text(""), self.negative)

    def _of_text(self, text: str) -> Condition:
        return self.family.encode([text], [None], size_of(self.config))[0]


class PlanPainter(DiffusionEngine):
    """Draws plans with the module that wrote them; items are those of `planned_drawing`."""

    def __init__(self, *options: Any) -> None:
        super().__init__(*options)
        self.conditions: Any = PlanContexts(self.family, self.config)

    def told(self, policy: Any, prompts: Sequence[PromptConditions]) -> dict[str, Tensor]:
        """The states of the decoder, which reads each context once for all steps."""
        return policy.read(super().told(policy, prompts))
