from pathlib import Path
from typing import Any

import pytest
import reasoning_gym

from rl_core.envs import BaseTextEnv, make
from rl_core.envs.tools.expressions import is_harmless_literal, is_plain_arithmetic
from rl_core.errors import EnvError


def row(task: str, index: int = 3, seed: int = 5, **config: Any) -> dict[str, Any]:
    entry = reasoning_gym.create_dataset(task, seed=seed, **{"size": index + 1, **config})[index]
    info = {"task": task, "seed": seed, "index": index, "config": {**config, "unused": None}}
    spec = {"ground_truth": entry["answer"]}
    return {
        "reward_spec": spec,
        "extra_info": {**info, "question": entry["question"]},
        "entry": entry,
    }


def reward(extras: dict[str, Any], reply: str, **config: Any) -> float:
    env: BaseTextEnv = make("reasoning_gym", config, extras)
    env.init([])
    return env.step(reply)["reward"]  # type: ignore[index]


@pytest.mark.parametrize(
    "task", ["chain_sum", "gcd", "products", "count_bits", "leg_counting", "gsm_symbolic"]
)
def test_the_tasks_own_answer_earns_one(task: str) -> None:
    extras = row(task)
    assert reward(extras, f"I think it is {extras['reward_spec']['ground_truth']}.") == 1.0


@pytest.mark.parametrize(
    "task", ["word_ladder", "sudoku", "n_queens", "spiral_matrix", "simple_integration"]
)
def test_scorers_that_read_metadata_get_it(task: str) -> None:
    extras = row(task)
    assert (
        reward(
            extras,
            f"Hm.\n<answer>{extras['reward_spec']['ground_truth']}</answer>",
            answer="answer_tag",
        )
        == 1.0
    )


def test_an_answer_other_than_the_stored_one_is_right_when_the_scorer_says_so() -> None:
    extras = row("countdown")
    equivalent = f"({extras['entry']['metadata']['expression']})"
    assert reward(extras, f"\\boxed{{{equivalent}}}", answer="boxed") == 1.0


@pytest.mark.parametrize("answer", ["last_number", "answer_tag", "boxed", "last_line", "text"])
def test_chain_sum_cannot_be_won_by_listing_numbers(answer: str) -> None:
    extras = row("chain_sum", index=0)
    truth = extras["reward_spec"]["ground_truth"]
    listed = (
        f"{truth} "
        + " ".join(str(number) for number in range(int(truth) - 50, int(truth) + 50))
        + " 0"
    )
    for reply in (listed, f"<answer>{listed}</answer>", f"\\boxed{{{listed}}}"):
        assert reward(extras, reply, answer=answer) == 0.0


def test_partial_credit_is_paid_only_when_asked_for() -> None:
    extras = row("chain_sum", index=0)
    reply = f"it is {extras['reward_spec']['ground_truth']}"
    assert reward(extras, reply, answer="text") == 0.0
    assert 0.0 < reward(extras, reply, answer="text", partial_credit=True) < 1.0


@pytest.mark.parametrize(
    ("place", "reply", "read"),
    [
        ("last_number", "10-3", "3"), ("last_number", "x = -3.", "-3"), ("last_number", "$1,234.50.", "1234.50"),
        ("last_number", "1,2,3", "3"), ("last_number", "\u22127", "-7"), ("last_number", "none", None),
        ("answer_tag", "<answer>1</answer> <answer> 2 </answer>", "2"), ("answer_tag", "<answer>1", None),
        ("boxed", "\\boxed{1} \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"), ("boxed", "\\boxed{1", None),
        ("boxed", "}", None),
        ("last_line", "a\nb \n\n", "b"), ("text", " a\nb ", "a\nb"), ("text", "  ", None),
    ],
)  # fmt: skip
def test_where_the_answer_is_read(place: str, reply: str, read: str | None) -> None:
    env = make("reasoning_gym", {"answer": place}, row("chain_sum"))
    assert env.step(reply)["metadata"]["answer"] == read  # type: ignore[index]


def test_a_scorer_that_raises_on_a_reply_grades_it_zero_and_says_so() -> None:
    env = make("reasoning_gym", {"answer": "text"}, row("prime_factorization"))
    output = env.step("no idea")
    assert output["reward"] == 0.0 and "ValueError" in output["metadata"]["scorer_error"]  # type: ignore[index]
    assert env.get_metrics() == {"correct": 0.0, "answered": 1.0, "scorer_error": 1.0}


def test_nan_is_not_a_right_complex_number() -> None:
    assert reward(row("complex_arithmetic"), "nan", answer="text") == 0.0


@pytest.mark.parametrize("task", ["game_of_life_halting", "puzzle24"])
def test_a_task_whose_scorer_can_be_hacked_is_refused(task: str) -> None:
    extras = row(task)
    with pytest.raises(EnvError, match="allow_unsound_scorers"):
        make("reasoning_gym", {}, extras)
    assert (
        make("reasoning_gym", {"allow_unsound_scorers": True}, extras).init([])[1]["task"] == task
    )


@pytest.mark.parametrize(
    "task", ["countdown", "simple_integration", "polynomial_multiplication", "spiral_matrix"]
)
def test_a_reply_cannot_run_code(task: str, tmp_path: Path) -> None:
    hacked = tmp_path / "hacked"
    code = f"__import__('pathlib').Path('{hacked}').touch()"
    for reply in (f"[{code}]", code):
        assert reward(row(task), reply, answer="text") == 0.0
    assert not hacked.exists()


@pytest.mark.parametrize(
    ("task", "reply"),
    [
        ("countdown", "exp(exp(exp(99)))"),
        ("countdown", "(9**(99*99*99))**(99*99*99)"),
        ("simple_integration", "(x+1)**(99*99*9)"),
    ],
)
def test_an_answer_that_would_be_computed_for_ever_is_wrong(
    task: str, reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_core.envs.reasoning_gym.TIMEOUT_S", 0.5)
    env = make("reasoning_gym", {"answer": "text"}, row(task))
    assert env.step(reply)["reward"] == 0.0


@pytest.mark.parametrize(
    "text",
    ["9**9**9**9", "(9**99)**(99**99)", "((9**99)**99)**99", "9**999", "f(1)", "x.y", "'a'*9"],
)
def test_costly_or_strange_arithmetic_is_not_evaluated(text: str) -> None:
    assert not is_plain_arithmetic(text)


def test_what_right_answers_need_is_evaluated() -> None:
    assert all(
        map(
            is_plain_arithmetic,
            ["(3 + 4)*2 - 7/2", "x**2/2 + exp(2*x) + C", "-x**(3/2)", "(x**2 + 1)**3"],
        )
    )
    assert all(
        map(is_harmless_literal, ["[[1, -2], [3, 4]]", "1 2 3", "_ Q _ _\nQ _ _ _", "['a', 'b']"])
    )
    assert not any(map(is_harmless_literal, ["[0]*10**9", "print(1)", "[x for x in y]", "a.b"]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": None}, "extra_info.task"), ({"seed": "5"}, "extra_info.seed"), ({"index": -1}, "extra_info.index"),
        ({"task": "chain_sums"}, "chain_sum"), ({"question": "1 + 1 ="}, "no longer asks"),
        ({"config": {"terms": 3}}, "terms"), ({"config": {"min_terms": 0}}, "min_terms"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_graded_is_refused_before_the_model_is_asked(
    change: dict, message: str
) -> None:
    extras = row("chain_sum")
    with pytest.raises(EnvError, match=message):
        make("reasoning_gym", {}, {**extras, "extra_info": {**extras["extra_info"], **change}})


def test_a_task_that_the_scoring_process_cannot_make_fails_its_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a task that a notebook registered; a score of 0 would say that the reply was wrong."""
    from reasoning_gym.factory import DATASETS

    monkeypatch.setitem(DATASETS, "of_this_test", DATASETS["chain_sum"])
    env = make("reasoning_gym", {}, row("of_this_test"))
    env.init([])
    with pytest.raises(EnvError, match=r"of_this_test.* cannot be made in the scoring process"):
        env.step("1")
