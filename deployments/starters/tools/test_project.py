"""What this project counts as right: python -m unittest, or pytest."""

import unittest

from my_env import LastNumber
from my_tools import multiply

from rl_core.envs import make, register


class ToolTest(unittest.TestCase):
    """The tool answers what it should, and refuses the rest by name."""

    def test_it_multiplies(self) -> None:
        self.assertEqual(multiply(" 12 * 34 "), 408)

    def test_it_refuses_anything_else(self) -> None:
        for expression in ("12 + 34", "12", "__import__('os')"):
            with self.assertRaises(ValueError):
                multiply(expression)


class AnswerTest(unittest.TestCase):
    """The last number of the last reply counts."""

    def test_the_last_number_earns_the_reward(self) -> None:
        register(id="products", entry_point=LastNumber)
        row = {"reward_spec": {"method": "rule", "ground_truth": "408"}}
        self.assertEqual(make("products", {}, row).step("It is 408.")["reward"], 1.0)
        self.assertEqual(make("products", {}, row).step("408, or 409")["reward"], 0.0)


if __name__ == "__main__":
    unittest.main()
