import pytest

from rl_core.envs import make
from rl_core.errors import EnvError

T = "<think>A triangle.</think>"


@pytest.fixture(scope="module")
def grade():
    keeper = make("geo3k", {}, {"reward_spec": {"ground_truth": "1"}})

    def graded(reply: str, truth: object) -> float:
        env = make("geo3k", {}, {"reward_spec": {"ground_truth": truth}})
        try:
            return env.step(reply)["reward"]  # type: ignore[index]
        finally:
            env.close()

    yield graded
    keeper.close()


@pytest.mark.parametrize(
    ("reply", "truth", "reward", "why"),
    [
        (f"{T} \\boxed{{12}}", "12", 1.0, "right in the right form"),
        (f"{T}\n\nSo $\\boxed{{12}}$.", "12", 1.0, "words and math mode around the box"),
        (f"{T} \\boxed{{12.0}}", "12", 1.0, "zeros after the point"),
        (f"{T} \\boxed{{12}} cm", 12, 1.0, "a number as truth, a unit outside"),
        (f"{T} \\boxed{{12 \\text{{ cm}}}}", "12", 1.0, "a unit in the box"),
        (f"{T} \\boxed{{12^\\circ}}", "12", 1.0, "degrees"),
        (f"{T} \\boxed{{5\\sqrt{{2}}}}", "\\sqrt{50}", 1.0, "a root in another form"),
        (f"{T} \\boxed{{\\frac{{1}}{{2}}}}", "0.5", 1.0, "a fraction"),
        (f"{T} \\boxed{{x = 12}}", "12", 1.0, "the unknown named"),
        (f"{T} \\boxed{{$12$}}", "12", 1.0, "math mode inside"),
        (f"{T} \\boxed{{3}} and then \\boxed{{12}}", "12", 1.0, "the last box"),
        (f"{T} \\boxed{{2\\pi}}", "2\\pi", 1.0, "a constant"),
        ("A triangle.</think> \\boxed{12}", "12", 1.0, "the template opens the thinking"),
        (f"\n{T} \\boxed{{12}}", "12", 1.0, "an empty line first"),
        ("<think>\\boxed{3}</think>\\boxed{12}", "12", 1.0, "a draft in the thinking"),
        (f"{T} \\boxed{{7}}", ["6", "7"], 1.0, "one of several truths"),
        (f"{T} \\boxed{{1,200}}", "1200", 1.0, "a thousands separator"),
        (f"{T} \\boxed{{2(x+1)}}", "2x+2", 1.0, "algebra"),
        (f"{T} \\boxed{{13}}", "12", 0.1, "wrong, in the right form"),
        (f"{T} \\boxed{{-12}}", "12", 0.1, "the sign counts"),
        (f"{T} \\boxed{{12}} or \\boxed{{13}}", "12", 0.1, "the last of two boxes is wrong"),
        (f"{T} \\boxed{{12, 13}}", "12", 0.1, "a list of candidates"),
        (f"{T} \\boxed{{12 \\text{{ or }} 13}}", "12", 0.1, "hedging"),
        (f"{T} \\boxed{{}}", "12", 0.1, "an empty box has the form and no answer"),
        (f"{T} \\boxed{{x}}", "12", 0.1, "an unknown"),
        ("<think>\\boxed{12}</think>\\boxed{13}", "12", 0.1, "the draft does not count"),
        ("\\boxed{12}", "12", 0.9, "right without thinking"),
        ("<think>A triangle. \\boxed{12}", "12", 0.9, "thinking that never ends: the box is found, the form is not"),
        ("Hm. <think>A.</think> \\boxed{12}", "12", 0.9, "words before the thinking"),
        (f"{T}{T} \\boxed{{12}}", "12", 0.9, "two thoughts"),
        ("<think></think> \\boxed{12}", "12", 0.9, "an empty thought"),
        ("<think>  \n</think> \\boxed{12}", "12", 0.9, "a blank thought"),
        (f"{T} </think> \\boxed{{12}}", "12", 0.9, "closed twice"),
        (f"{T} \\boxed{{12}} <think>", "12", 0.9, "opened again"),
        ("\\boxed{12}</think>", "12", 0.0, "nothing after the thinking"),
        ("<think>\\boxed{12}</think> So 12.", "12", 0.0, "boxed only in the thinking"),
        (f"{T} 12", "12", 0.0, "no box"),
        (f"{T} \\boxed{{12", "12", 0.0, "a box that is never closed"),
        (f"{T} boxed{{12}}", "12", 0.0, "no backslash"),
        (f"{T}", "12", 0.0, "thinking alone"),
        ("", "12", 0.0, "nothing was said"),
        ("\\boxed{13}", "12", 0.0, "wrong, without thinking"),
    ],
)  # fmt: skip
def test_accuracy_and_form(grade, reply: str, truth: object, reward: float, why: str) -> None:
    assert grade(reply, truth) == pytest.approx(reward), why


def test_the_weight_of_the_form_is_a_setting() -> None:
    env = make("geo3k", {"format_weight": 0.5}, {"reward_spec": {"ground_truth": "12"}})
    output = env.step(f"{T} \\boxed{{13}}")
    assert output["reward"] == 0.5  # type: ignore[index]
    assert output["metadata"] == {"answer": "13", "accuracy": 0.0, "format": 1.0}  # type: ignore[index]
    assert env.get_metrics() == {"accuracy": 0.0, "format": 1.0}
    env.close()
    with pytest.raises(EnvError, match="format_weight"):
        make("geo3k", {"format_weight": 2}, {"reward_spec": {"ground_truth": "12"}})
