"""An OpenEnv environment: which of two numbers is larger? A wrong answer may be put right once.

It knows nothing of rl-train; `uvicorn larger_server:app` serves it to any client of OpenEnv.
"""

import random

from openenv.core import Action, Environment, Observation, State  # pyright: ignore[reportMissingImports]
from openenv.core.env_server import create_app  # pyright: ignore[reportMissingImports]

WRONG = "That is the smaller one. Answer with the larger number alone."


class Answer(Action):
    """Answer of the player."""

    text: str


class Shown(Observation):
    """Text that the player reads."""

    text: str = ""


class Larger(Environment):
    """1 for the larger number, 0.5 if it is said at the second try."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.numbers, self.tries = (0, 1), 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        """Draw two numbers of two digits by `seed`."""
        a, b = random.Random(seed).sample(range(10, 100), 2)
        self.numbers, self.tries = (a, b), 0
        return Shown(text=f"Which number is larger, {a} or {b}? Answer with the number alone.")

    def step(self, action, timeout_s=None, **kwargs):
        """Take an answer."""
        self.tries += 1
        if action.text.strip().rstrip(".") == str(max(self.numbers)):
            return Shown(text="Right.", done=True, reward=1.0 / self.tries)
        return Shown(text=WRONG, done=self.tries == 2, reward=0.0)

    @property
    def state(self):
        """Number of answers so far."""
        return State(step_count=self.tries)


app = create_app(Larger, Answer, Shown, env_name="larger", max_concurrent_envs=64)
