"""The scorers of text: math, code, format, length. Each case with its reason."""

import pytest

from rl_core.rewards import Sample, Scorer, Unscored, reward_scorers


def make(**block: object) -> Scorer:
    cls, config = reward_scorers.resolve(block, "rewards.0")
    return cls(config)


@pytest.mark.parametrize(
    ("reply", "truth", "score", "why"),
    [
        (r"so \boxed{1/2}", "0.5", 1.0, "equal as numbers"),
        (r"\boxed{\frac{1}{2}}", "1/2", 1.0, "equal as LaTeX"),
        (r"\boxed{0.6}", "1/2", 0.0, "another number"),
        (r"\boxed{3} no, \boxed{4}", 4, 1.0, "the last box counts"),
        ("4", "4", 0.0, "not where the answer stands"),
        (r"\boxed{7}", ["6", "7"], 1.0, "a list holds alternatives"),
        (r"\boxed{7}", {"target": "7"}, 1.0, "a truth may be wrapped"),
        (r"\boxed{", "7", 0.0, "never closed"),
    ],
)
def test_math(reply: str, truth: object, score: float, why: str):
    scored = make(name="math").score([Sample("?", ("#### 7 by a tool", reply), ground_truth=truth)])
    assert list(scored) == [score], why


def test_math_says_what_a_wrong_answer_costs_and_marks_rows_without_a_truth():
    scorer = make(name="math", wrong=-1.0, answer="last_number")
    samples = [
        Sample("?", (text,), ground_truth=truth)
        for text, truth in (("it is 5", 5), ("6", 5), ("5", None))
    ]
    right, wrong, none = scorer.score(samples)
    assert (right, wrong) == (1.0, -1.0)
    assert isinstance(none, Unscored)
    assert "no ground truth" in none.reason


TESTS = [
    {"input": "1 2", "output": "3"},
    {"input": "2 2", "output": "4"},
    {"input": "5 5", "output": "10"},
]
ADDS = "```python\na, b = map(int, input().split())\nprint(a + b)\n```"
HALF = "```python\na, b = map(int, input().split())\nprint(a + b if a < 5 else 0)\n```"


@pytest.mark.parametrize(
    ("partial", "expected"), [(False, [1.0, 0.0, 0.0]), (True, [1.0, 2 / 3, 0.0])]
)
def test_code_runs_in_the_sandbox(partial: bool, expected: list[float]):
    scorer = make(name="code", partial=partial)
    replies = [ADDS, HALF, "no program"]
    assert (
        list(scorer.score([Sample("add", (reply,), ground_truth=TESTS) for reply in replies]))
        == expected
    )


def test_code_marks_rows_whose_tests_cannot_be_run():
    (found,) = make(name="code").score([Sample("add", (ADDS,), ground_truth="not tests")])
    assert isinstance(found, Unscored)


@pytest.mark.parametrize(
    ("reply", "score", "why"),
    [
        ("<think>a</think>\n<answer>b</answer>", 1.0, "the form"),
        ("<think>a\nb</think><answer></answer> \n", 1.0, "lines and blanks do not matter"),
        ("<think>a</think>", 0.0, "no answer"),
        ("x <think>a</think><answer>b</answer>", 0.0, "something before"),
        ("<think>a</think><answer>b</answer> x", 0.0, "something after"),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.0, "two answers"),
        ("<think><think>a</think><answer>b</answer>", 0.0, "a tag inside a tag"),
        ("", 0.0, "nothing"),
    ],
)
def test_format(reply: str, score: float, why: str):
    assert list(make(name="format").score([Sample("?", (reply,))])) == [score], why


def test_format_takes_a_pattern_of_ones_own_and_refuses_what_is_none():
    assert list(
        make(name="format", pattern=r"\d+").score([Sample("?", ("12",)), Sample("?", ("12a",))])
    ) == [1.0, 0.0]
    with pytest.raises(Exception, match="not a regular expression"):
        make(name="format", pattern="(")


def test_length_by_hand():
    scorer = make(name="length", max_length=100, buffer=20, penalty=2.0)
    samples = [Sample("?", ("x",), num_tokens=length) for length in (0, 80, 85, 90, 100, 120)]
    assert list(scorer.score(samples)) == pytest.approx([0.0, 0.0, -0.5, -1.0, -2.0, -2.0])
