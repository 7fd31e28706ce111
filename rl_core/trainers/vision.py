"""The domain of vision-language models: as text, with pictures that travel with the prompts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from rl_core.models.bundle import ModelBundle
from rl_core.rollout.dedicated import DedicatedEngine
from rl_core.trainers.base import Trainer
from rl_core.trainers.text import TOKENS, token_learner, wire_replies
from rl_core.trainers.track import Wiring
from rl_core.trainers.wiring import place_policy
from schemas.rollout import EngineKind

TRACK = "vision"
SEEING = replace(
    TOKENS,
    learner=partial(token_learner, bundle_class=ModelBundle),
    own_engines={EngineKind.DEDICATED: DedicatedEngine},
)
"""Policies whose prompts show pictures."""


class VisionTrainer(Trainer):
    """RL on a vision-language model with its environments.

    Workers open and process the pictures, once per prompt; what comes of it stays on the rank that
    made it, one object for all siblings, and is encoded once per pass.
    """

    def wire(self) -> Wiring:
        """Model, engine and scorers, side by side or with an engine on devices of its own."""
        placed = place_policy(SEEING, self.pool, self.recipe, self.source_model)
        return wire_replies(TRACK, self.recipe, *placed)
