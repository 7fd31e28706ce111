"""Environments: small classes that turn a model's reply into a reward (the SkyRL contract)."""

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, Message, ground_truth_kind
from rl_core.envs.registration import EnvSpec, accepted_ground_truths, environments, make, register, registered

__all__ = [
    "BaseTextEnv",
    "BaseTextEnvStepOutput",
    "EnvSpec",
    "Message",
    "accepted_ground_truths",
    "environments",
    "ground_truth_kind",
    "make",
    "register",
    "registered",
]
