"""`from skyrl_gym.envs.base_text_env import BaseTextEnv`, as SkyRL's documentation has it."""

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, ConversationType

__all__ = ["BaseTextEnv", "BaseTextEnvStepOutput", "ConversationType"]
