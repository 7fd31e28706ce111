"""The environment of this project: it grades the reply to one row."""

import re

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies


class OrderNumber(BaseTextEnv):
    """A customer writes, and the reply should be the order's number and nothing else: 1.0.

    A reply that has the right number among other words earns its share of the letters, so that each
    word less is worth something; any other reply earns 0.0.
    """

    full_reward = 1.0
    ground_truth_kinds = frozenset({"string"})

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade a reply; `metadata["answer"]` is what was read from it."""
        self.turns += 1
        answer, truth = action.strip(), str(self.ground_truth)
        found = truth in re.findall(r"\d+", answer)
        reward = len(truth) / len(answer) if found else 0.0
        return {"observations": [], "reward": reward, "done": True, "metadata": {"answer": answer}}

    def oracle_replies(self) -> OracleReplies:
        """Return a right and a wrong reply, with which `rl-train validate` tries every row."""
        return OracleReplies(str(self.ground_truth), "I do not know")
