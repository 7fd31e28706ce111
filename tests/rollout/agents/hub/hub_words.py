"""A taskset of the verifiers package: say a word; one with a tool; and faulty ones by `fault`."""

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

__all__ = ["Words"]


class Data(vf.TaskData):
    answer: str = ""


class WordConfig(vf.TaskConfig):
    fault: str = ""


class WordTask(vf.Task[Data, vf.State, WordConfig]):
    @vf.reward
    async def right(self, trace) -> float:
        if self.config.fault == "reward":
            raise ZeroDivisionError("no reward of this")
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 6)

    @vf.metric
    async def letters(self, trace) -> float:
        return float(len(trace.last_reply))


class Config(vf.TasksetConfig):
    words: tuple[str, ...] = ("red", "green", "blue")
    prompts: bool = True
    task: WordConfig = WordConfig()


class Words(vf.Taskset[WordTask, Config]):
    def load(self):
        for word in self.config.words:
            prompt = f"Say {word}" if self.config.prompts else None
            data = Data(prompt=prompt, answer=word, system_prompt="One word.")
            yield WordTask(data, self.config.task)
