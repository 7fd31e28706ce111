"""The environment `rewrite`: one turn, whose worth is found out elsewhere."""

from rl_core.envs import make


def test_a_rewrite_ends_the_conversation_without_a_reward():
    env = make("rewrite", {}, {"reward_spec": {"ground_truth": {"digit": 7}}})
    prompt = [{"role": "user", "content": "siete"}]
    assert env.init(prompt)[0] == prompt
    step = env.step("seven")
    assert (step["reward"], step["done"], step["observations"]) == (0.0, True, [])  # type: ignore[index]
