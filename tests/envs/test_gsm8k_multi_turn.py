from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, make
from rl_core.errors import EnvError
from tests.envs.number_replies import CASES, FORMED, RIGHT


def env(truth: object = "42", **extras: Any) -> BaseTextEnv:
    return make("gsm8k_multi_turn", extras={"reward_spec": {"ground_truth": truth}, **extras})


@pytest.mark.parametrize(("reply", "reward", "why"), CASES)
def test_one_turn(reply: str, reward: str, why: str) -> None:
    output = env().step(reply)
    assert output["reward"] == pytest.approx({RIGHT: 1.0, FORMED: 0.2 / 5}.get(reward, 0.0)), why  # type: ignore[index]
    assert output["done"] == (reward == RIGHT)  # type: ignore[index]


@pytest.mark.parametrize("truth", [42, 42.0, "42", "$42", [7, "42"], "6*7\n#### 42"])
def test_truths_of_every_kind(truth: object) -> None:
    assert env(truth).step("#### 42")["reward"] == 1.0  # type: ignore[index]


def test_a_conversation_ends_with_its_turns_and_the_last_observation_asks_for_the_answer_alone() -> (
    None
):
    one = env(extra_info={"max_turns": 3})
    outputs = [one.step("#### 1"), one.step("hm"), one.step("#### 2")]
    assert [output["reward"] for output in outputs] == pytest.approx([0.2 / 3, 0.0, 0.2 / 3])  # type: ignore[index]
    assert [output["done"] for output in outputs] == [False, False, True]  # type: ignore[index]
    texts = [output["observations"][0]["content"] for output in outputs[:2]]  # type: ignore[index]
    assert (
        "tentative" in texts[0] and "final answer alone" in texts[1] and "#### <number>" in texts[1]
    )
    assert outputs[2]["observations"] == []  # type: ignore[index]
    assert outputs[0]["observations"][0]["role"] == "user"  # type: ignore[index]
    assert one.get_metrics() == {"correct": 0.0, "turns": 3.0, "answered": pytest.approx(2 / 3)}


def test_a_wrong_turn_does_not_spoil_a_right_one() -> None:
    one = env()
    assert one.step("#### 1")["done"] is False  # type: ignore[index]
    output = one.step("#### 42")
    assert output["reward"] == 1.0 and output["done"] is True  # type: ignore[index]


def test_the_form_alone_never_earns_more_than_its_share() -> None:
    one = env()
    assert sum(one.step("#### 1")["reward"] for _ in range(5)) == pytest.approx(0.2)  # type: ignore[index]


@pytest.mark.parametrize("truth", ["Paris", None, [], {"a": 1}])
def test_a_truth_that_is_no_number_is_refused(truth: object) -> None:
    with pytest.raises(EnvError, match="ground_truth"):
        env(truth)
