"""exact_match: the reply is the truth, and nothing else."""

import pytest

from rl_core.envs import make


@pytest.mark.parametrize(
    ("truth", "reply", "reward"),
    [
        ('{"a":1}', '{"a":1}\n', 1.0),
        ('{"a":1}', "<think>so</think>\n" + '{"a":1}', 1.0),
        ('{"a":1}', '{"a": 1}', 0.0),
        ('{"a":1}', 'It is {"a":1}', 0.0),
        (["yes", "no"], "no", 1.0),
        (7, "7", 1.0),
        (7, "", 0.0),
    ],
)
def test_a_reply_earns_its_reward_character_by_character(
    truth: object, reply: str, reward: float
) -> None:
    env = make("exact_match", extras={"reward_spec": {"ground_truth": truth}})
    assert env.step(reply)["reward"] == reward
