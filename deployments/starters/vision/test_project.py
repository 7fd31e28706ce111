r"""What this project counts as right: python -m unittest, or pytest."""

import unittest

from my_env import Boxed

from rl_core.envs import make, register


def graded(reply: str) -> float:
    """Return the reward of a reply to a row whose answer is red."""
    row = {"reward_spec": {"method": "rule", "ground_truth": "red"}}
    return make("pictures", {}, row).step(reply)["reward"]


class BoxedTest(unittest.TestCase):
    """The last box counts, and nothing beside it."""

    @classmethod
    def setUpClass(cls) -> None:
        register(id="pictures", entry_point=Boxed)

    def test_the_last_box_earns_the_reward(self) -> None:
        self.assertEqual(graded(r"<think>blue?</think>\boxed{Red}"), 1.0)
        self.assertEqual(graded(r"\boxed{red}, or \boxed{blue}"), 0.0)

    def test_an_answer_without_a_box_earns_nothing(self) -> None:
        self.assertEqual(graded("red"), 0.0)


if __name__ == "__main__":
    unittest.main()
