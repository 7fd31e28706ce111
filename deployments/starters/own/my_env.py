"""The environment of this project: it grades the reply to one row."""

import re

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies


class OrderNumber(BaseTextEnv):
    """A customer writes, and the reply should be the order's number and nothing else: 1.0. A reply
    that has the right number among other words earns 0.3, any other one 0.0."""

    full_reward = 1.0
    ground_truth_kinds = frozenset({"string"})

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade a reply; `metadata["answer"]` is what was read from it."""
        self.turns += 1
        answer, truth = action.strip(), str(self.ground_truth)
        reward = 0.3 if truth in re.findall(r"\d+", answer) else 0.0
        if answer == truth:
            reward = self.full_reward
        return {"observations": [], "reward": reward, "done": True, "metadata": {"answer": answer}}

    def oracle_replies(self) -> OracleReplies:
        """Return a right and a wrong reply, with which `rl-train validate` tries every row."""
        return OracleReplies(str(self.ground_truth), "I do not know")
