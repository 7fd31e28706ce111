"""`from skyrl_gym.envs import register`, as SkyRL's documentation has it."""

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, make, register

__all__ = ["BaseTextEnv", "BaseTextEnvStepOutput", "make", "register"]
