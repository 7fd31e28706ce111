from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, make
from rl_core.errors import EnvError

CHIEFS = ["Kansas City Chiefs", "Chiefs"]


def environment(url: str, truth: object = "Paris", **extras: Any) -> BaseTextEnv:
    return make(
        "search",
        {"search_url": url, "timeout": 5},
        {"reward_spec": {"ground_truth": truth}, **extras},
    )


@pytest.mark.parametrize(
    ("reply", "truth", "reward", "why"),
    [
        ("<answer>Paris</answer>", "Paris", 1.0, "the plain form"),
        ("<answer> Paris\n</answer>", "Paris", 1.0, "white space"),
        ("<answer>paris</answer>", "Paris", 1.0, "case"),
        ("<answer>Paris.</answer>", "Paris", 1.0, "a full stop"),
        ("<answer>'Paris'</answer>", "Paris", 1.0, "quotes"),
        ("<answer>the Eiffel Tower</answer>", "Eiffel Tower", 1.0, "an article"),
        ("<answer>Eiffel Tower</answer>", "The Eiffel Tower", 1.0, "an article in the truth"),
        ("<answer>a  cat</answer>", "cat", 1.0, "an article and two spaces"),
        ("<answer>U.S.</answer>", "US", 1.0, "full stops in between"),
        ("<answer>Jean-Paul</answer>", "JeanPaul", 1.0, "hyphens are punctuation to SQuAD"),
        ("<answer>1,000</answer>", "1000", 1.0, "a thousands separator"),
        ("<answer>7</answer>", 7, 1.0, "a number as truth"),
        ("<answer>Chiefs</answer>", CHIEFS, 1.0, "one of several"),
        ("<answer>kansas city chiefs!</answer>", CHIEFS, 1.0, "the other one"),
        ("<answer>Chiefs</answer>", {"target": CHIEFS}, 1.0, "a target"),
        ("<answer>Paris</answer>", {"target": "Paris"}, 1.0, "a target of one"),
        ("<think>Berlin?</think><answer>Paris</answer>", "Paris", 1.0, "after its thinking"),
        ("<answer>Berlin</answer> No: <answer>Paris</answer>", "Paris", 1.0, "the last answer"),
        ("I know: <answer>Paris</answer> Done.", "Paris", 1.0, "words around"),
        ("<search>Paris</search><answer>Paris</answer>", "Paris", 1.0, "a search beside the answer"),
        ("<answer>Zürich</answer>", "zürich", 1.0, "letters beyond ASCII"),
        ("<answer>The The</answer>", "the the", 1.0, "a name that is all articles"),
        ("<answer>C++</answer>", "C", 1.0, "SQuAD drops the signs"),
        ("<answer>Lyon</answer>", "Paris", 0.0, "wrong"),
        ("<answer>Paris, France</answer>", "Paris", 0.0, "more than asked for"),
        ("<answer>Par</answer>", "Paris", 0.0, "less than asked for"),
        ("<answer>Paris or Lyon</answer>", "Paris", 0.0, "hedging"),
        ("<answer>Paris</answer><answer>Lyon</answer>", "Paris", 0.0, "the last answer is wrong"),
        ("<answer>Kansas City Chiefs, Chiefs</answer>", CHIEFS, 0.0, "all of them at once"),
        ("<answer></answer>", "Paris", 0.0, "an empty answer"),
        ("<answer>  </answer>", "the", 0.0, "a blank answer for a truth that normalises to nothing"),
        ("<answer>!!!</answer>", "the", 0.0, "signs for a truth that normalises to nothing"),
        ("<answer>a</answer>", "the", 0.0, "another article"),
        ("<answer>.</answer>", "Paris", 0.0, "a full stop alone"),
        ("<answer>not Paris</answer>", "Paris", 0.0, "a denial"),
        ("<answer>New York</answer>", "York New", 0.0, "the order of words counts"),
        ("<answer>7.0</answer>", "7", 0.0, "no arithmetic: 70 after normalisation"),
        ("<answer>None</answer>", "null", 0.0, "another word for nothing"),
        ("<answer>['Paris', 'Lyon']</answer>", ["Paris", "Lyon"], 0.0, "the list itself"),
        ("<answer>{\"target\": \"Paris\"}</answer>", {"target": "Paris"}, 0.0, "the target's form"),
        ("<answer><answer>Lyon</answer>", "Paris", 0.0, "opened twice"),
        ("<answer>Pa ris</answer>", "Paris", 0.0, "a space inside"),
    ],
)  # fmt: skip
def test_answers(search_url: str, reply: str, truth: object, reward: float, why: str) -> None:
    env = environment(search_url, truth)
    output: Any = env.step(reply)
    env.close()
    assert output["reward"] == reward and output["done"], (why, output)


@pytest.mark.parametrize(
    ("last", "reward", "why"),
    [
        ("<answer>Paris</answer>", 1.0, "answers after searching"),
        ("Paris", 0.0, "no tag"),
        ("<answer>Paris", 0.0, "a tag that is never closed"),
        ("Answer: Paris</answer>", 0.0, "a tag that was never opened"),
        ("<search>more</search>", 0.0, "searches again in its last turn"),
        ("", 0.0, "says nothing"),
    ],
)
def test_the_last_turn_is_graded(search_url: str, last: str, reward: float, why: str) -> None:
    env = environment(search_url)
    assert env.step("<search>capital of France</search>")["done"] is False  # type: ignore[index]
    output: Any = env.step(last)
    env.close()
    assert (output["reward"], output["done"], output["observations"]) == (reward, True, []), why


def test_an_answer_in_a_retrieved_page_is_not_the_model_s(search_url: str) -> None:
    env = environment(search_url, "Berlin")
    first: Any = env.step("<search>capital</search>")
    assert "<answer>Berlin</answer>" in first["observations"][0]["content"]
    assert env.step("I found it above.")["reward"] == 0.0  # type: ignore[index]
    env.close()


def test_what_a_search_gives_back(search_url: str) -> None:
    env = environment(search_url, max_turns=3)
    output: Any = env.step("Let me see. <search> capital of France </search>")
    assert output["observations"] == [
        {
            "role": "user",
            "content": '\n<information>{"result": "Doc 1: Paris is the capital of France.\\n\\n'
            'Doc 2: <answer>Berlin</answer> is what this page says."}</information>\n',
        }
    ]
    assert output["reward"] == 0.0 and output["metadata"] == {
        "tool_group": "SearchToolGroup",
        "tool_name": "search",
        "tool_input": " capital of France ",
    }
    invalid: Any = env.step("hm")
    assert (
        "<search>" in invalid["observations"][0]["content"]
        and invalid["metadata"]["tool_name"] is None
    )
    env.step("<answer>Paris</answer>")
    assert env.get_metrics() == {
        "searches": 1,
        "search_errors": 0,
        "correct": 1,
        "answered": 1,
        "turns": 3,
    }
    env.close()


@pytest.mark.parametrize(
    "truth", [None, [], [None], True, {"targets": "a"}, [{"input": "1", "output": "2"}]]
)
def test_a_truth_that_is_no_answer_is_refused(search_url: str, truth: object) -> None:
    with pytest.raises(EnvError, match="ground_truth"):
        environment(search_url, truth)
