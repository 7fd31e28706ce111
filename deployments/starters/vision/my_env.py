r"""The environment of this project: the answer stands in `\boxed{}`."""

import re

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies


class Boxed(BaseTextEnv):
    r"""A question about a picture: 1.0 if the last `\boxed{}` of the reply holds the answer."""

    full_reward = 1.0
    ground_truth_kinds = frozenset({"string", "number"})

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade a reply; `metadata["answer"]` is what was read from it."""
        self.turns += 1
        boxes = re.findall(r"\\boxed\{([^{}]*)\}", action)
        answer = boxes[-1].strip().lower() if boxes else None
        reward = float(answer == str(self.ground_truth).lower())
        return {"observations": [], "reward": reward, "done": True, "metadata": {"answer": answer}}

    def oracle_replies(self) -> OracleReplies:
        """Return a right and a wrong reply, with which `rl-train validate` tries every row."""
        return OracleReplies(rf"\boxed{{{self.ground_truth}}}", r"\boxed{I cannot see it}")
