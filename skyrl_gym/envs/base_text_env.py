"""SkyRL's import path of `BaseTextEnv`: `from skyrl_gym.envs.base_text_env import BaseTextEnv`."""

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, ConversationType

__all__ = ["BaseTextEnv", "BaseTextEnvStepOutput", "ConversationType"]
