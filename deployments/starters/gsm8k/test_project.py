"""What this project counts as right: python -m unittest, or pytest."""

import unittest

from rl_core.envs import make


def graded(reply: str) -> float:
    """Return the reward of a reply to a row whose answer is 7."""
    row = {"reward_spec": {"method": "rule", "ground_truth": "7"}}
    return make("gsm8k", {}, row).step(reply)["reward"]


class AnswerTest(unittest.TestCase):
    """The number behind the last `####` counts, and nothing else."""

    def test_the_number_behind_the_marks_earns_the_reward(self) -> None:
        self.assertEqual(graded("3 + 4 = 7\n#### 7"), 1.0)

    def test_a_number_without_the_marks_earns_nothing(self) -> None:
        self.assertEqual(graded("The answer is 7."), 0.0)

    def test_another_number_earns_nothing(self) -> None:
        self.assertEqual(graded("#### 8"), 0.0)


if __name__ == "__main__":
    unittest.main()
