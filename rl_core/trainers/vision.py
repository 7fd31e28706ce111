"""The wiring for vision-language models: that of text, since a reply is tokens; pictures travel with the prompts."""

from __future__ import annotations

from typing import ClassVar

from rl_core.models.bundle import ModelBundle
from rl_core.rollout.dedicated import DedicatedEngine
from rl_core.trainers.text import TextTrainer
from schemas.rollout import EngineKind


class VisionTrainer(TextTrainer):
    """RL on a vision-language model with its environments.

    Workers open and process the pictures, once per prompt; what comes of it stays on the rank that made it, one object
    for all siblings, and is encoded once per pass.
    """

    track: ClassVar = "vision"
    own_engines: ClassVar = {EngineKind.DEDICATED: DedicatedEngine}
    bundle_class: ClassVar = ModelBundle
