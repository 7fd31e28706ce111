from typing import Any

import pytest

from rl_core.envs import make
from rl_core.errors import EnvError

OPTIONS = ["Rome", "Paris", "Bern", "Oslo 2"]


def grade(reply: str, truth: str = "B", options: Any = OPTIONS) -> float:
    extras = {"reward_spec": {"ground_truth": truth}, "extra_info": {"options": options}}
    return make("multiple_choice", {}, extras).step(reply)["reward"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("reply", "reward", "why"),
    [
        ("\\boxed{B}", 1.0, "the plain form"),
        ("It is $\\boxed{B}$.", 1.0, "words and math mode around"),
        ("\\boxed{b}", 1.0, "lower case"),
        ("\\boxed{ B }", 1.0, "spaces"),
        ("\\boxed{(B)}", 1.0, "brackets"),
        ("\\boxed{[B]}", 1.0, "square brackets"),
        ("\\boxed{B.}", 1.0, "a full stop"),
        ("\\boxed{B)}", 1.0, "a closing bracket"),
        ("\\boxed{\\text{B}}", 1.0, "LaTeX's text mode"),
        ("\\boxed{\\textbf{B}}", 1.0, "bold"),
        ("\\boxed{\\mathrm{(B)}}", 1.0, "roman, with brackets"),
        ("\\boxed{\\text{\\textbf{B}}}", 1.0, "wrapped twice"),
        ("\\boxed{**B**}", 1.0, "markdown"),
        ("\\boxed{$B$}", 1.0, "math mode inside"),
        ("\\boxed{B. Paris}", 1.0, "the letter with its own option"),
        ("\\boxed{B: paris}", 1.0, "the same with a colon, in lower case"),
        ("\\boxed{\\text{B. Paris}}", 1.0, "the same in text mode"),
        ("\\boxed{(B) Paris}", 1.0, "the same with brackets"),
        ("\\boxed{Option B}", 1.0, "the word option"),
        ("\\boxed{Answer: B}", 1.0, "the word answer"),
        ("\\boxed{B} ... so \\boxed{B}", 1.0, "the same letter twice"),
        ("<think>\\boxed{A}?</think>\\boxed{B}", 1.0, "a draft in the thinking"),
        ("\\boxed{B}\r\n", 1.0, "a CRLF line end"),
        ("\\boxed{A}", 0.0, "wrong"),
        ("\\boxed{A} \\boxed{B}", 0.0, "two letters are no answer"),
        ("\\boxed{B} \\boxed{A}", 0.0, "in either order"),
        ("\\boxed{A}\\boxed{B}\\boxed{C}\\boxed{D}", 0.0, "naming all of them"),
        ("\\boxed{A, B}", 0.0, "two letters in one box"),
        ("\\boxed{A or B}", 0.0, "hedging"),
        ("\\boxed{AB}", 0.0, "two letters as a word"),
        ("\\boxed{BB}", 0.0, "a letter twice is a word"),
        ("\\boxed{B and C}", 0.0, "starts with the right one"),
        ("\\boxed{not B}", 0.0, "a denial"),
        ("\\boxed{B. Rome}", 0.0, "the letter with another option's words"),
        ("\\boxed{Paris}", 0.0, "an option's words without its letter: a letter was asked for"),
        ("\\boxed{Because}", 0.0, "a word that starts with the letter"),
        ("\\boxed{2}", 0.0, "a number is no letter"),
        ("\\boxed{}", 0.0, "an empty box"),
        ("\\boxed{B", 0.0, "a box that is never closed"),
        ("B", 0.0, "no box"),
        ("The answer is B.", 0.0, "no box, in words"),
        ("boxed{B}", 0.0, "no backslash"),
        ("<think>\\boxed{B}</think> Done.", 0.0, "boxed only in the thinking"),
        ("<think>\\boxed{B}</think>\\boxed{C}", 0.0, "the answer is what follows the thinking"),
        ("", 0.0, "nothing was said"),
        ("\\boxed{" + "B" * 500 + "}", 0.0, "a long run of letters"),
    ],
)  # fmt: skip
def test_one_boxed_letter(reply: str, reward: float, why: str) -> None:
    assert grade(reply) == reward, why


@pytest.mark.parametrize(
    ("truth", "options"),
    [
        ("B", None), ("b", OPTIONS), ("(B)", OPTIONS), ("B.", OPTIONS), ("Paris", OPTIONS), ("B. Paris", OPTIONS),
        ("B", {"A": "Rome", "B": "Paris", "C": None}), ("B", ["A. Rome", "B. Paris"]),
        ("Paris", ["(A) Rome", "(B) Paris"]),
    ],
)  # fmt: skip
def test_truths_and_options_of_every_kind(truth: str, options: Any) -> None:
    assert grade("\\boxed{B}", truth, options) == 1.0 and grade("\\boxed{A}", truth, options) == 0.0


@pytest.mark.parametrize(
    ("truth", "options"), [("E", OPTIONS), ("Madrid", OPTIONS), ("Rome", ["Rome", "Rome"])]
)
def test_a_truth_that_is_not_offered_is_refused(truth: str, options: Any) -> None:
    with pytest.raises(EnvError, match="must be one of A, B"):
        grade("\\boxed{A}", truth, options)


def test_options_may_be_a_column_of_the_row() -> None:
    env = make("multiple_choice", {}, {"reward_spec": {"ground_truth": "Bern"}, "options": OPTIONS})
    output = env.step("\\boxed{C}")
    assert output["reward"] == 1.0 and output["metadata"] == {"answer": "C"}  # type: ignore[index]
    assert env.get_metrics() == {"correct": 1.0, "answered": 1.0}
