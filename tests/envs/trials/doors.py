"""Environments that refuse rows in every way there is, by their ground truth."""

import os
import time
from typing import Any

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.errors import MachineLacks


class DoorEnv(BaseTextEnv):
    """Does what the row's ground truth says."""

    def __init__(self, env_config: Any = None, extras: Any = None) -> None:
        super().__init__(env_config, extras)
        print("printed by an environment")
        what = self.ground_truth
        if what == "hang":
            time.sleep(1000)
        if what == "die":
            os._exit(3)
        if what == "key":
            self.extras["db_id"]
        if what == "lack":
            raise MachineLacks("no such device here")

    def step(self, action: str) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(observations=[], reward=0.0, done=True, metadata={})
