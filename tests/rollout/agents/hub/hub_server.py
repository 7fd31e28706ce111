"""OpenEnv servers of tests: actions of a text, of two fields, and a server without rewards."""

from openenv.core import Action, Environment, Observation, State  # pyright: ignore[reportMissingImports]
from openenv.core.env_server import create_app  # pyright: ignore[reportMissingImports]


class Text(Action):
    text: str


class Move(Action):
    x: int
    y: int


class Shown(Observation):
    text: str = ""


class Board(Observation):
    place: tuple[int, int] = (0, 0)
    size: int = 3


class Base(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.start, self.num_steps = 0, 0

    @property
    def state(self):
        return State(step_count=self.num_steps)


class CountUp(Base):
    def reset(self, seed=None, episode_id=None, step=1, **kwargs):
        self.start, self.by = seed, step
        return Shown(text=f"What comes {step} after {seed}?")

    def step(self, action, timeout_s=None, **kwargs):
        self.num_steps += 1
        if action.text == "crash":
            raise ZeroDivisionError("the world ends")
        is_right = action.text == str(self.start + self.by * self.num_steps)
        return Shown(text="And then?", done=self.num_steps == 3, reward=float(is_right))


class Walk(Base):
    def reset(self, seed=None, episode_id=None, **kwargs):
        return Board()

    def step(self, action, timeout_s=None, **kwargs):
        at = (action.x, action.y)
        return Board(place=at, done=at == (2, 2), reward=1.0 if at == (2, 2) else -0.1)


class Mute(CountUp):
    def step(self, action, timeout_s=None, **kwargs):
        return Shown(text="Hm.", done=True)


app = create_app(CountUp, Text, Shown, max_concurrent_envs=8)
board = create_app(Walk, Move, Board, max_concurrent_envs=1)
mute = create_app(Mute, Text, Shown, max_concurrent_envs=8)
