"""Environments: small classes that grade a model's reply with a reward (the SkyRL contract)."""

from rl_core.envs.base import (
    BaseTextEnv,
    BaseTextEnvStepOutput,
    ConversationType,
    Message,
    OracleReplies,
    tag_pairs,
)
from rl_core.envs.registration import (
    EnvSpec,
    accepted_ground_truths,
    environments,
    make,
    register,
    registered,
)
from rl_core.envs.tools.core import ToolGroup, tool
from schemas.rows.ground_truth import ground_truth_kind

__all__ = [
    "BaseTextEnv",
    "BaseTextEnvStepOutput",
    "ConversationType",
    "EnvSpec",
    "Message",
    "OracleReplies",
    "ToolGroup",
    "accepted_ground_truths",
    "environments",
    "ground_truth_kind",
    "make",
    "register",
    "registered",
    "tag_pairs",
    "tool",
]
