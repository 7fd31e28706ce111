"""The domain of vision-language models: the text domain with pictures in the prompts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rl_core.distributed.servers.vllm_engine import SeeingVllmEngine
from rl_core.models.bundle import ModelBundle
from rl_core.rollout.dedicated import DedicatedEngine
from rl_core.trainers.base import Trainer
from rl_core.trainers.domains.text import TOKENS, token_learner, wire_replies
from rl_core.trainers.track import Wiring
from rl_core.trainers.wiring import place_policy
from schemas.sections.rollout import EngineKind

TRACK = "vision"
SEEING = replace(
    TOKENS,
    learner=partial(token_learner, bundle_class=ModelBundle),
    own_engines={EngineKind.DEDICATED: DedicatedEngine, EngineKind.VLLM: SeeingVllmEngine},
)
"""The kind of policy whose actions are tokens and whose prompts have pictures."""


class VisionTrainer(Trainer):
    """RL on a vision-language model with its environments.

    Workers open and process the pictures once per prompt. The result stays on the rank that made
    it, as one object for all siblings, and is encoded once per forward pass.
    """

    def wire(self) -> Wiring:
        """Place model, engine and scorers in the same processes, or the engine on its own
        devices."""
        placed = place_policy(SEEING, self.pool, self.recipe, self.source_model)
        return wire_replies(TRACK, self.recipe, *placed)
