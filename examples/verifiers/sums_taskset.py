"""A taskset of the verifiers package: sums of two numbers up to ten, which are answered or not.

It knows nothing of rl-train; `eval sums_taskset` of verifiers plays it, too.
"""

import re

import verifiers.v1 as vf  # pyright: ignore[reportMissingImports]

__all__ = ["Sums"]


class Sum(vf.TaskData):
    """A question with its answer."""

    answer: int


class SumTask(vf.Task[Sum]):
    """Rewarded for the right number at the end of the reply."""

    @vf.reward
    async def right(self, trace) -> float:
        """1 for the right number."""
        found = re.findall(r"-?\d+", trace.last_reply)
        return float(bool(found) and int(found[-1]) == self.data.answer)

    @vf.metric
    async def letters(self, trace) -> float:
        """Length of the reply."""
        return float(len(trace.last_reply))


class SumsConfig(vf.TasksetConfig):
    """Settings of the taskset."""

    largest: int = 10


class Sums(vf.Taskset[SumTask, SumsConfig]):
    """All sums of two numbers from zero to `largest`."""

    def load(self):
        """Yield the questions."""
        numbers = range(self.config.largest + 1)
        for a in numbers:
            for b in numbers:
                asked = f"Calculate {a} + {b}. State the final answer only."
                yield SumTask(Sum(prompt=asked, answer=a + b), self.config.task)
