"""The environment `ungraded`: one turn without a reward of its own."""

from rl_core.envs import make


def test_a_reply_ends_the_conversation_and_earns_nothing():
    env = make("ungraded", {}, {"reward_spec": {"ground_truth": "Thank you."}})
    step = env.step("Thank you.")
    assert (step["reward"], step["done"], step["observations"]) == (0.0, True, [])  # type: ignore[index]
