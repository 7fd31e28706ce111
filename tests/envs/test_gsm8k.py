import pytest

from rl_core.envs import make
from rl_core.errors import EnvError
from tests.envs.number_replies import CASES, RIGHT


def reward(reply: str, truth: object) -> float:
    return make("gsm8k", extras={"reward_spec": {"ground_truth": truth}}).step(reply)["reward"]  # type: ignore[index]


@pytest.mark.parametrize(("reply", "expected", "why"), CASES)
def test_replies(reply: str, expected: str, why: str) -> None:
    assert reward(reply, "42") == float(expected == RIGHT), why


@pytest.mark.parametrize(
    "answer",
    [
        "42", " 42 ", "42.", "42.0", "$42", "$42.00.", "\\$42", "**42**", "\\boxed{42}", "42 apples", "42%", "+42",
        "= 42", "42\nDone, 7 steps.", "\n42", "42 ####", "42<|im_end|>", "042",
    ],
)  # fmt: skip
@pytest.mark.parametrize("truth", ["42", 42, 42.0, "$42.00", ["7", 42], "So 6*7.\n#### 42"])
def test_a_right_answer_is_never_lost(answer: str, truth: object) -> None:
    assert reward(f"6 * 7 makes it.\n#### {answer}", truth) == 1.0


@pytest.mark.parametrize(
    ("answer", "truth"),
    [("1,234", 1234), ("1 234", "1,234"), ("1234567", "1,234,567"), ("-3", -3), ("-$3", "-3"), ("\u22123", -3),
     ("0.1", 0.1), (".5", 0.5), ("1,234.50", 1234.5)],
)  # fmt: skip
def test_separators_signs_and_decimals(answer: str, truth: object) -> None:
    assert reward(f"#### {answer}", truth) == 1.0


@pytest.mark.parametrize(
    "reply",
    [
        "42", "The answer is 42.", "####", "#### 42 or 43", "#### 41, 42", "#### 1/42", "#### 4 2", "#### -42",
        "#### 421", "#### 42e1", "#### 42\n#### 43", "#### none\n42", "#### not 42", "### 42", "#### 42.5", "",
    ],
)  # fmt: skip
def test_anything_else_earns_nothing(reply: str) -> None:
    assert reward(reply, "42") == 0.0


def test_listing_all_numbers_earns_nothing() -> None:
    assert reward("\n".join(f"#### {number}" for number in range(100)), "42") == 0.0
    assert reward("#### " + " ".join(str(number) for number in range(100)), "42") == 0.0


@pytest.mark.parametrize(
    "truth", ["Paris", "", None, True, float("nan"), [], [42, "Paris"], [None], [{"input": "1"}]]
)
def test_a_truth_that_is_no_number_is_refused_at_the_door(truth: object) -> None:
    with pytest.raises(EnvError, match="ground_truth"):
        make("gsm8k", extras={"reward_spec": {"ground_truth": truth}})


def test_metadata_and_metrics_tell_what_was_read() -> None:
    env = make("gsm8k", extras={"reward_spec": {"ground_truth": "1234"}})
    output = env.step("#### $1,235")
    assert output == {
        "observations": [],
        "reward": 0.0,
        "done": True,
        "metadata": {"answer": "1235"},
    }
    assert env.get_metrics() == {"correct": 0.0, "answered": 1.0}
