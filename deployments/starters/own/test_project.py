"""What this project counts as right: python -m unittest, or pytest."""

import unittest

from my_env import OrderNumber
from my_reward import Brief

from rl_core.envs import make, register
from rl_core.rewards import Sample


def graded(reply: str) -> float:
    """Return the reward of a reply to a row whose answer is 12345."""
    row = {"reward_spec": {"method": "rule", "ground_truth": "12345"}}
    return make("orders", {}, row).step(reply)["reward"]


class OrderNumberTest(unittest.TestCase):
    """The environment and the reward, each with replies whose reward is known."""

    @classmethod
    def setUpClass(cls) -> None:
        register(id="orders", entry_point=OrderNumber)

    def test_the_number_alone_earns_all(self) -> None:
        self.assertEqual(graded(" 12345\n"), 1.0)

    def test_the_number_in_a_sentence_earns_a_part(self) -> None:
        self.assertLess(graded("The order number is 12345."), graded("Order 12345."))
        self.assertLess(graded("Order 12345."), 1.0)

    def test_another_number_earns_nothing(self) -> None:
        self.assertEqual(graded("54321"), 0.0)
        self.assertEqual(graded("123456"), 0.0)

    def test_a_longer_reply_is_less_brief(self) -> None:
        samples = [Sample(prompt="", replies=(text,)) for text in ("12345", "It is 12345.")]
        short, long = Brief(Brief.Config()).score(samples)
        self.assertGreater(short, long)


if __name__ == "__main__":
    unittest.main()
