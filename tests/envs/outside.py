"""A user's own module, as it might lie beside a recipe: environments written the way SkyRL's
documentation shows."""

from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.tools.core import ToolGroup, tool


class MultiplyEnv(BaseTextEnv):
    """Pays `reward` for the boxed product, otherwise asks again."""

    def __init__(
        self, env_config: Any = None, extras: dict[str, Any] | None = None, reward: float = 1.0
    ) -> None:
        super().__init__()
        assert extras is not None and "reward_spec" in extras
        self.truth = extras["reward_spec"]["ground_truth"]
        self.max_turns = extras.get("max_turns", 2)
        self.reward = reward
        self.hint = env_config.hint if env_config else "again"

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        is_right = f"\\boxed{{{self.truth}}}" in action
        done = is_right or self.turns >= self.max_turns
        observations = [] if done else [{"role": "user", "content": self.hint}]
        return BaseTextEnvStepOutput(
            observations=observations,
            reward=self.reward * is_right,
            done=done,
            metadata={"turns": self.turns},
        )


class Calculator(ToolGroup):
    """Two tools and something that is none."""

    def __init__(self) -> None:
        super().__init__(name="Calculator")
        self.is_closed = False

    @tool
    def add(self, a: int, b: int) -> int:
        return a + b

    @tool
    def negate(self, a: int) -> int:
        return -a

    def secret(self) -> str:
        return "not for models"

    def close(self) -> None:
        self.is_closed = True
