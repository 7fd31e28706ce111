import threading

import pytest

from rl_core.envs import BaseTextEnvStepOutput, make
from rl_core.errors import EnvError


def grade(reply: str, truth: object = "42", **config: object) -> BaseTextEnvStepOutput:
    env = make("aime", config, {"reward_spec": {"ground_truth": truth}})
    try:
        return env.step(reply)  # type: ignore[return-value]
    finally:
        env.close()


@pytest.fixture(scope="module", autouse=True)
def _one_comparing_process():
    env = make("aime", {}, {"reward_spec": {"ground_truth": "1"}})
    yield
    env.close()


@pytest.mark.parametrize(
    ("reply", "truth", "is_right", "why"),
    [
        ("Answer: 42", "42", True, "the plain form"),
        ("So ...\nAnswer: 42", 42, True, "a number as truth"),
        ("answer: 42", "42", True, "case does not matter"),
        ("**Answer:** 42", "42", True, "markdown around the word"),
        ("**Answer: 42**", "42", True, "markdown around all of it"),
        ("Answer: $42$", "42", True, "in math mode"),
        ("Answer: \\(42\\)", "42", True, "in the other math mode"),
        ("Answer: 42.", "42", True, "a full stop"),
        ("Answer: \\boxed{42}", "42", True, "a box on the answer's line"),
        ("Answer: 42<|im_end|>", "42", True, "an end token that was decoded"),
        ("Answer:42", "42", True, "no space"),
        ("Answer : 42", "42", True, "a space before the colon"),
        ("Answer: 042", "42", True, "AIME pads with zeros"),
        ("so \\boxed{42}", "42", True, "a box alone"),
        ("so $\\boxed{42}$.", "42", True, "a box in math mode"),
        ("\\boxed{41}, no: \\boxed{42}", "42", True, "the last box"),
        ("Answer: 41\nAnswer: 42", "42", True, "the last answer"),
        ("Answer: 41\nWait.\n\\boxed{42}", "42", True, "a box after the answer is the later word"),
        ("Answer: 0.5", "1/2", True, "a decimal for a fraction"),
        ("Answer: \\frac{1}{2}", "0.5", True, "a fraction for a decimal"),
        ("Answer: \\dfrac{2}{4}", "\\frac12", True, "a fraction that is not reduced"),
        ("Answer: 2\\sqrt{2}", "\\sqrt{8}", True, "a root in another form"),
        ("Answer: 1,000", "1000", True, "a thousands separator"),
        ("Answer: x = 42", "42", True, "the unknown named"),
        ("Answer: 42 \\text{ cm}", "42", True, "a unit"),
        ("Answer: 6 \\cdot 7", "42", True, "an equal expression is mathematically the same"),
        ("Answer: Paris", "Paris", True, "a word"),
        ("Answer: paris.", "\\text{Paris}", True, "a word in LaTeX's text mode"),
        ("Answer: 7", ["6", "7"], True, "one of several truths"),
        ("Answer: 43", "42", False, "wrong"),
        ("Answer: -42", "42", False, "the sign counts"),
        ("Answer: 4.2", "42", False, "so does the point"),
        ("42", "42", False, "no marker"),
        ("The answer is 42", "42", False, "no colon, no marker"),
        ("Answer:", "42", False, "an empty answer"),
        ("\\boxed{}", "42", False, "an empty box"),
        ("\\boxed{42", "42", False, "a box that is never closed"),
        ("", "42", False, "nothing was said"),
        ("Answer: 42 or 43", "42", False, "hedging in words"),
        ("Answer: 41, 42, 43", "42", False, "a list of candidates"),
        ("\\boxed{42} or \\boxed{43}", "42", False, "two boxes: the last counts"),
        ("Answer: 42\nAnswer: 43", "42", False, "taken back"),
        ("Answer: 42" + " blah" * 100, "42", False, "the answer is not in the tail"),
        ("Answer: sirap", "Paris", False, "an anagram, which algebra would call equal"),
        ("Answer: x", "42", False, "a free unknown equals nothing"),
        ("Answer: 42 = 43", "42", False, "a false equation"),
        ("Answer: \\text{the number you expect}", "42", False, "pleading"),
        ("Answer: 10^{10^{10^{10}}}", "43/2", False, "an expression that would be computed for ever"),
        ("Answer: " + "(" * 99 + "42", "42", False, "deep brackets"),
        ("Answer: __import__('os').getpid()", "43/2", False, "code is not run"),
    ],
)  # fmt: skip
def test_final_answers(reply: str, truth: object, is_right: bool, why: str) -> None:
    output = grade(reply, truth)
    assert output["reward"] == (1.0 if is_right else -1.0), (why, output)
    assert output["metadata"]["acc"] is is_right and output["done"]


def test_metadata_tells_what_was_read() -> None:
    assert grade("Answer: $41$")["metadata"] == {"acc": False, "pred": "$41$"}
    assert grade("no")["metadata"] == {"acc": False, "pred": None}


def test_the_truth_may_be_in_reward_model() -> None:
    env = make("aime", {}, {"reward_model": {"ground_truth": "42", "style": "rule"}})
    assert env.step("Answer: 42")["reward"] == 1.0  # type: ignore[index]
    assert env.get_metrics() == {"acc": 1.0, "answered": 1.0}
    env.close()


def test_it_works_in_threads_where_signals_do_not() -> None:
    rewards: list[float] = []
    threads = [
        threading.Thread(
            target=lambda: rewards.append(grade("Answer: \\frac{2}{6}", "1/3")["reward"])
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert rewards == [1.0] * 4


def test_a_row_without_truth_is_refused() -> None:
    with pytest.raises(EnvError, match="ground_truth"):
        make("aime", {}, {"reward_spec": {}})
