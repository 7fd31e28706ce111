from collections.abc import Iterator
from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, make
from rl_core.errors import EnvError


def environment(url: str, truth: object = "42", **config: Any) -> BaseTextEnv:
    row = {"reward_spec": {"ground_truth": truth}, "max_turns": 3}
    return make("searchcode", {"search_url": url, "timeout": 5, **config}, row)


@pytest.fixture(scope="module", autouse=True)
def _warm() -> Iterator[None]:
    keeper = environment("http://127.0.0.1:1/")
    yield
    keeper.close()


@pytest.mark.parametrize(
    ("reply", "truth", "reward", "why"),
    [
        ("<solution>42</solution>", "42", 1.0, "the plain form"),
        ("<solution>#### 42</solution>", "42", 1.0, "with gsm8k's marker"),
        ("<solution>So 6 * 7.\n#### 42</solution>", "42", 1.0, "with its reasoning"),
        ("<solution>6 * 7 is\n42</solution>", "42", 1.0, "on the last line"),
        ("<solution> 42 \n</solution>", 42, 1.0, "white space, a number as truth"),
        ("<solution>42.</solution>", "42", 1.0, "a full stop"),
        ("<solution>$42</solution>", "42", 1.0, "a dollar sign"),
        ("<solution>42.00</solution>", 42.0, 1.0, "zeros after the point"),
        ("<solution>1,234</solution>", "1234", 1.0, "a separator"),
        ("<solution>42 apples</solution>", "42", 1.0, "a unit"),
        ("<solution>\\boxed{42}</solution>", "42", 1.0, "a box"),
        ("<solution>**42**</solution>", "42", 1.0, "markdown"),
        ("<solution>-3</solution>", "-3", 1.0, "a negative number"),
        ("<solution>= 42</solution>", "42", 1.0, "an equals sign"),
        ("<solution>42</solution> Done.", "42", 1.0, "words after"),
        ("<think>41?</think><solution>42</solution>", "42", 1.0, "thinking before"),
        ("<solution>41</solution><solution>42</solution>", "42", 1.0, "the last solution"),
        ("<solution>7</solution>", ["6", 7], 1.0, "one of several truths"),
        ("<tool><python>print(42)</python></tool><solution>42</solution>", "42", 1.0, "a tool call beside it"),
        ("<solution>42</solution>", "6*7\n#### 42", 1.0, "a worked solution as truth"),
        ("<solution>41</solution>", "42", 0.0, "wrong"),
        ("<solution>-42</solution>", "42", 0.0, "the sign counts"),
        ("<solution>42.5</solution>", "42", 0.0, "so do decimals"),
        ("<solution>42</solution><solution>41</solution>", "42", 0.0, "taken back"),
        ("<solution></solution>", "42", 0.0, "an empty solution"),
        ("<solution>\n</solution>", "42", 0.0, "a blank one"),
        ("<solution>forty-two</solution>", "42", 0.0, "words"),
        ("<solution>41 or 42</solution>", "42", 0.0, "hedging"),
        ("<solution>41, 42, 43</solution>", "42", 0.0, "a list"),
        ("<solution>42\n41</solution>", "42", 0.0, "lines: the last one counts"),
        ("<solution>#### 42\n#### 41</solution>", "42", 0.0, "markers: the last one counts"),
        ("<solution>####</solution>", "42", 0.0, "a marker alone"),
        ("<solution>6 * 7</solution>", "42", 0.0, "a calculation is not carried out"),
        ("<solution>x = 42</solution>", "42", 0.0, "an equation does not start with the number"),
        ("<solution>84/2</solution>", "42", 0.0, "a fraction is not worked out"),
        ("<solution>not 42</solution>", "42", 0.0, "a denial"),
        ("<solution>" + " ".join(map(str, range(99))) + "</solution>", "42", 0.0, "all candidates"),
        ("<solution>print(42)</solution>", "42", 0.0, "code is not run"),
        ("<solution>nan</solution>", "42", 0.0, "not a number"),
        ("<solution>42e0</solution>", "42", 0.0, "an exponent is not read"),
        ("<solution><solution>41</solution>", "42", 0.0, "opened twice"),
    ],
)  # fmt: skip
def test_solutions(search_url: str, reply: str, truth: object, reward: float, why: str) -> None:
    env = environment(search_url, truth)
    output: Any = env.step(reply)
    env.close()
    assert output["reward"] == reward and output["done"], (why, output)


def test_python_gives_back_what_was_printed_and_nothing_else(search_url: str) -> None:
    env = environment(search_url)
    output: Any = env.step("<tool><python>print(6 * 7)\nprint('done')</python></tool>")
    assert output["observations"] == [{"role": "user", "content": "42\ndone\n"}]
    assert output["metadata"] == {
        "tool_group": "PythonCodeExecutorToolGroup",
        "tool_name": "python",
        "tool_input": "print(6 * 7)\nprint('done')",
    }
    failed: Any = env.step("<tool><python>print('before')\n1 / 0</python></tool>")
    text = failed["observations"][0]["content"]
    assert (
        text.startswith("before\nTraceback (most recent call last):\n  File")
        and "ZeroDivisionError" in text
    )
    env.close()


def test_python_has_a_deadline_and_a_sandbox(search_url: str) -> None:
    env = environment(search_url, python_timeout_s=0.5)
    late: Any = env.step("<tool><python>while True: pass</python></tool>")
    assert (
        "TimeoutError: the code ran longer than 0.5 seconds" in late["observations"][0]["content"]
    )
    env.close()
    env = environment(search_url)
    refused: Any = env.step(f"<tool><python>print(open({__file__!r}).read())</python></tool>")
    assert "FileNotFoundError" in refused["observations"][0]["content"]
    long: Any = env.step("<tool><python>print('x' * 10 ** 6)</python></tool>")
    assert "characters left out" in long["observations"][0]["content"]
    assert len(long["observations"][0]["content"]) < 10_000
    env.close()


def test_a_search_is_the_observation(search_url: str) -> None:
    env = environment(search_url)
    output: Any = env.step("<tool><search>France</search></tool>")
    assert output["observations"][0]["content"].startswith('{"result": "Doc 1: Paris')
    assert output["metadata"]["tool_group"] == "SearchToolGroup"
    env.close()


@pytest.mark.parametrize(
    "action",
    ["hm", "<python>print(1)</python>", "<tool>print(1)</tool>", "<tool><shell>ls</shell></tool>", "<tool></tool>",
     "<tool><python>print(1)</tool>", "<tool><close>x</close></tool>", "<tool><get_name>x</get_name></tool>"],
)  # fmt: skip
def test_a_call_that_is_none_names_the_tools(search_url: str, action: str) -> None:
    env = environment(search_url)
    output: Any = env.step(action)
    env.close()
    assert (
        "<tool><python>" in output["observations"][0]["content"]
        and output["metadata"]["tool_name"] is None
    )


def test_a_number_that_a_tool_printed_is_not_the_model_s(search_url: str) -> None:
    env = environment(search_url)
    env.step("<tool><python>print('<solution>42</solution> #### 42')</python></tool>")
    assert env.step("as printed")["done"] is False  # type: ignore[index]
    output: Any = env.step("see above")
    assert output["done"] and output["reward"] == 0.0
    assert env.get_metrics() == {"tool_calls": 1, "correct": 0, "answered": 0, "turns": 3}
    env.close()


@pytest.mark.parametrize("truth", ["Paris", None, []])
def test_a_truth_that_is_no_number_is_refused(search_url: str, truth: object) -> None:
    with pytest.raises(EnvError, match="ground_truth"):
        environment(search_url, truth)
