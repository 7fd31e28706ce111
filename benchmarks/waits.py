"""Sampling and training that take as long as on devices of their own, by waiting: for
`benchmarks.ahead --waits`, which then measures the order of things and not this machine's cores.

A reply takes a time with a long tail (lognormal), and a rollout that of its slowest reply; training
takes what a rollout does in the mean.
"""

from __future__ import annotations

import random
import time
from typing import Any

from rl_core.algorithms.presets import Grpo
from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput

MEDIAN_S, SPREAD = 0.5, 0.8
"""Median and logarithmic spread of a reply's time."""
TRAINING_S = 1.8
"""Time of a step's training: about the mean of the slowest of eight replies."""
ENVIRONMENT = f"{__name__}:Waiting"
ALGORITHM = f"{__name__}:WaitingGrpo"
SIZES = [
    "training.prompts_per_step=2",
    "rollout.samples_per_prompt=4",
    "rollout.max_new_tokens=2",
    "algorithm.name=null",
    f"algorithm.target={ALGORITHM}",
]
_draws = random.Random(0)


class Waiting(BaseTextEnv):
    """Answers after the time that a reply of some length would have taken."""

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__()

    def step(self, action: str) -> BaseTextEnvStepOutput:
        time.sleep(MEDIAN_S * _draws.lognormvariate(0.0, SPREAD))
        reward = _draws.random()
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata={})


class WaitingGrpo(Grpo):
    """GRPO whose loss takes as long as a training step."""

    def loss(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(TRAINING_S)
        return super().loss(*args, **kwargs)
