"""An environment of the verifiers package with turns of its own: guess a number, be told more."""

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

__all__ = ["Guess", "GuessEnv"]


class Data(vf.TaskData):
    answer: int = 0


class GuessTask(vf.Task[Data]):
    @vf.reward
    async def guessed(self, trace) -> float:
        return float(trace.last_reply == str(self.data.answer))

    @vf.metric
    async def tries(self, trace) -> float:
        return float(trace.num_turns)


class Guess(vf.Taskset[GuessTask]):
    INFINITE = True

    def load(self):
        number = 0
        while True:
            number += 1
            yield GuessTask(Data(prompt="Guess my number.", answer=number), self.config.task)


class GuessConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessEnv(vf.Env[GuessConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as game:
            said = await game.turn()
            while not said.terminated and said.last_reply != str(task.data.answer):
                said = await game.turn("No. More.")
