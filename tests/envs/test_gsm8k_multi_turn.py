from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, make
from rl_core.errors import EnvError

FORM = 0.2 / 5
RIGHT, FORMED, NOTHING = 1.0, FORM, 0.0


def env(truth: object = "42", **extras: Any) -> BaseTextEnv:
    return make("gsm8k_multi_turn", extras={"reward_spec": {"ground_truth": truth}, **extras})


@pytest.mark.parametrize(
    ("reply", "reward", "why"),
    [
        ("#### 42", RIGHT, "the plain form"),
        ("6 * 7 = 42\n#### 42", RIGHT, "after its reasoning"),
        ("#### 42.", RIGHT, "a full stop ends the sentence"),
        ("#### $42", RIGHT, "a dollar sign is no part of a number"),
        ("#### \\$42", RIGHT, "nor an escaped one"),
        ("#### 42.00", RIGHT, "zeros after the point change nothing"),
        ("#### 42 apples", RIGHT, "a unit may follow"),
        ("#### 42 %", RIGHT, "so may a per cent sign"),
        ("#### **42**", RIGHT, "markdown is decoration"),
        ("#### \\boxed{42}", RIGHT, "so is a box"),
        ("####42", RIGHT, "no space is needed"),
        ("####   42  ", RIGHT, "many do no harm"),
        ("#### +42", RIGHT, "a plus sign"),
        ("#### = 42", RIGHT, "an equals sign"),
        ("#### 42\r\n", RIGHT, "a CRLF line end"),
        ("#### 42<|im_end|>", RIGHT, "an end token that was decoded"),
        ("#### 7\nNo.\n#### 42", RIGHT, "the last one is the answer"),
        ("#### 042", RIGHT, "a leading zero"),
        ("#### 42\nThat took 3 steps.", RIGHT, "the line after the answer is not read"),
        ("#### 41", FORMED, "wrong, in the right form"),
        ("#### -42", FORMED, "the sign counts"),
        ("#### 42.5", FORMED, "so do decimals"),
        ("#### 420", FORMED, "a longer number"),
        ("#### 4,2", RIGHT, "commas do not matter, wherever they stand"),
        ("#### 0", FORMED, "zero is a number"),
        ("#### 1,000,000", FORMED, "well-formed with separators"),
        ("#### 42\n#### 41", FORMED, "taking the answer back"),
        ("42", NOTHING, "no marker"),
        ("The answer is 42.", NOTHING, "no marker, in words"),
        ("####", NOTHING, "a marker alone"),
        ("#### ", NOTHING, "a marker and a space"),
        ("#### forty-two", NOTHING, "words are not read"),
        ("### 42", NOTHING, "a heading is no marker"),
        ("#### 41 or 42", NOTHING, "two numbers are no answer"),
        ("#### 41, 42", NOTHING, "a list is no answer"),
        ("#### " + " ".join(map(str, range(100))), NOTHING, "listing all numbers"),
        ("#### <number>", NOTHING, "the prompt's own form, copied"),
        ("#### x = 42", NOTHING, "an equation does not start with the number"),
        ("#### 4 2", NOTHING, "two digits apart"),
        ("#### not 42", NOTHING, "a denial"),
        ("#### 84/2", NOTHING, "a calculation is not carried out"),
        ("", NOTHING, "nothing was said"),
        ("\n".join(f"#### {n}" for n in range(100)), FORMED, "one candidate per line: only the last counts"),
    ],
)  # fmt: skip
def test_one_turn(reply: str, reward: float, why: str) -> None:
    output = env().step(reply)
    assert output["reward"] == pytest.approx(reward), why  # type: ignore[index]
    assert output["done"] == (reward == RIGHT)  # type: ignore[index]


@pytest.mark.parametrize("truth", [42, 42.0, "42", "$42", [7, "42"], "6*7\n#### 42"])
def test_truths_of_every_kind(truth: object) -> None:
    assert env(truth).step("#### 42")["reward"] == 1.0  # type: ignore[index]


def test_a_conversation_ends_with_its_turns_and_the_last_observation_asks_for_the_answer_alone() -> None:
    one = env(extra_info={"max_turns": 3})
    outputs = [one.step("#### 1"), one.step("hm"), one.step("#### 2")]
    assert [output["reward"] for output in outputs] == pytest.approx([0.2 / 3, 0.0, 0.2 / 3])  # type: ignore[index]
    assert [output["done"] for output in outputs] == [False, False, True]  # type: ignore[index]
    texts = [output["observations"][0]["content"] for output in outputs[:2]]  # type: ignore[index]
    assert "tentative" in texts[0] and "final answer alone" in texts[1] and "#### <number>" in texts[1]
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
