"""What a last reply earns, once the tools have been called."""

import re

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies


class LastNumber(BaseTextEnv):
    """1.0 if the last number of the reply is the right one, else 0.0."""

    full_reward = 1.0
    ground_truth_kinds = frozenset({"string", "number"})

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade a reply; `metadata["answer"]` is the number that was read from it."""
        self.turns += 1
        numbers = re.findall(r"\d+", action.replace(",", ""))
        answer = numbers[-1] if numbers else None
        reward = float(answer == str(self.ground_truth))
        return {"observations": [], "reward": reward, "done": True, "metadata": {"answer": answer}}

    def oracle_replies(self) -> OracleReplies:
        """Return a right and a wrong reply, with which `rl-train validate` tries every row."""
        return OracleReplies(str(self.ground_truth), f"{self.ground_truth}1")
