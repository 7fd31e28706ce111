"""What this project counts as right: python -m unittest, or pytest."""

import unittest

from my_env import LastNumber

from rl_core.envs import make, register


def graded(reply: str) -> float:
    """Return the reward of a reply to a row whose answer is 7."""
    row = {"reward_spec": {"method": "rule", "ground_truth": "7"}}
    return make("word_problems", {}, row).step(reply)["reward"]


class AnswerTest(unittest.TestCase):
    """The last number of a reply counts, and nothing else."""

    @classmethod
    def setUpClass(cls) -> None:
        register(id="word_problems", entry_point=LastNumber)

    def test_the_last_number_earns_the_reward(self) -> None:
        self.assertEqual(graded("3 + 4 = 7"), 1.0)
        self.assertEqual(graded("3 + 4 = 7\n#### 7"), 1.0)

    def test_another_last_number_earns_nothing(self) -> None:
        self.assertEqual(graded("7 apples and 2 pears"), 0.0)

    def test_no_number_earns_nothing(self) -> None:
        self.assertEqual(graded("seven"), 0.0)


if __name__ == "__main__":
    unittest.main()
