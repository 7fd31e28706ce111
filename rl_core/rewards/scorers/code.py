"""Programs against test cases: the last reply's last code block, run in the sandbox like the
environment `lcb`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pydantic import Field

from rl_core.envs.lcb import LCBEnv
from rl_core.errors import EnvError
from rl_core.rewards.base import Modality, Sample, Scorer, Unscored, reward_scorers
from schemas.sections.checks.numbers import Seconds


@reward_scorers.register("code")
class CodeScorer(Scorer):
    """1.0 when the program passes all tests of the row's ground truth, else 0.0 or the share it
    passed."""

    class Config(Scorer.Config):
        """Execution of programs, and their scores."""

        timeout_s: Seconds = Field(default=600.0, gt=0)
        """Longest time for all samples of a rollout on one rank in seconds."""
        partial: bool = False
        """Score the share of tests passed before the first failure instead of 0."""
        program: LCBEnv.Config = LCBEnv.Config()
        """Limits of one program: the options of the environment `lcb`."""

    config: Config
    modalities = frozenset({Modality.TEXT})

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Run as many programs concurrently as there are processors, since deadlines of tests count
        wall time."""
        with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="reward code") as pool:
            return list(pool.map(self._one, samples))

    def _one(self, sample: Sample) -> float | Unscored:
        try:
            env = LCBEnv(
                self.config.program, {"reward_spec": {"ground_truth": sample.ground_truth}}
            )
        except EnvError as error:
            return Unscored(str(error))
        try:
            outcome: Any = env.step(sample.text)
        finally:
            env.close()
        passed = outcome["metadata"]["passed"] / outcome["metadata"]["tests"]
        if self.config.partial:
            return passed
        return outcome["reward"]
