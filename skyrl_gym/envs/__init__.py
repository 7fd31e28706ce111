"""SkyRL's import path of `register`: `from skyrl_gym.envs import register`."""

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, make, register

__all__ = ["BaseTextEnv", "BaseTextEnvStepOutput", "make", "register"]
