"""Judges behind a server that follows a script: what is sent, how verdicts are read, what failures
become."""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from rl_core.errors import RecipeError, ServiceError
from rl_core.rewards import Sample, resolve_scorers
from rl_core.rewards.judging.answer_cache import AnswerCache
from rl_core.rewards.judging.requests import Answer
from rl_core.rewards.samples import with_groups
from rl_core.rewards.service import RewardService, Scores
from schemas.sections.rewards import RewardServiceConfig
from tests.chat_server import Server, said

QUICK = RewardServiceConfig(backoff_s=0.0)
Start = Callable[[Callable[[dict[str, Any]], tuple[int, Any]]], Server]


@pytest.fixture
def start() -> Iterator[Start]:
    servers: list[Server] = []

    def begin(answer: Callable[[dict[str, Any]], tuple[int, Any]]) -> Server:
        servers.append(Server(answer))
        return servers[-1]

    yield begin
    for server in servers:
        server.close()


def with_probs(**probs: float) -> tuple[int, Any]:
    """An answer whose next token has these probabilities."""
    code, body = said(next(iter(probs)))
    top = [{"token": token, "logprob": math.log(one)} for token, one in probs.items()]
    body["choices"][0]["logprobs"] = {"content": [{"top_logprobs": top}]}
    body["usage"]["prompt_tokens"] = 100
    return code, body


def judged(
    server: Server, samples: Sequence[Sample], *, name: str = "judge", **block: Any
) -> tuple[Scores, dict[str, float]]:
    """Scores, and what the judge counted. Nothing is kept unless the block says so."""
    usual = {"name": name, "url": server.url, "model": "m", "pause_s": 0.0, "max_cached": 0}
    service = RewardService([usual | block], QUICK)
    try:
        return service.score_samples(samples), service.asked[name].scorer.counts()
    finally:
        service.close()


def test_the_score_is_the_mean_of_the_digits_under_the_judges_distribution(start: Start):
    server = start(lambda body: with_probs(**{"5": 0.5, " 1": 0.25, "3": 0.15, "x": 0.1}))
    found, counts = judged(server, [Sample("q", ("r",))], price_in=10.0, price_out=100.0)
    assert found.by_key["judge"].scores == [pytest.approx((0.5 + 0.15 * 0.5) / 0.9, abs=1e-4)]
    (request,) = server.requests
    assert (request["max_tokens"], request["logprobs"], request["top_logprobs"]) == (1, True, 20)
    assert request["messages"][1]["content"].endswith("Answer with 1 or 2 or 3 or 4 or 5 alone.")
    assert (counts["requests"], counts["input_tokens"], counts["output_tokens"]) == (1, 100, 5)
    assert counts["cost"] == pytest.approx((100 * 10 + 5 * 100) / 1e6)


def test_yes_is_a_word_even_where_yaml_reads_a_truth_value(start: Start):
    server = start(lambda body: with_probs(Yes=0.6, no=0.2))
    found, _ = judged(server, [Sample("q", ("r",))], labels={True: 1, False: 0})
    assert found.by_key["judge"].scores == [0.75]


@pytest.mark.parametrize(
    ("block", "words", "score"),
    [
        ({"read": "regex"}, "It is bad. VERDICT: 1\nNo: verdict: 4", 0.75),
        ({"read": "regex"}, "VERDICT: 5, I think", None),
        ({"read": "regex"}, "VERDICT: 9", None),
        ({"read": "regex", "labels": {"good": 1, "bad": -1}}, "VERDICT: Bad\n", -1.0),
        ({"read": "json"}, '{"verdict": 1} is what it wants.\n```json\n{"verdict": 5}\n```', 1.0),
        ({"read": "json"}, '{"a": {"verdict": 5}}', None),
        ({"read": "json"}, '{"verdict": 5} said the reply', None),
        ({"read": "json"}, '{"verdict": true}', None),
        ({"read": "json"}, '{"said": "{"} ": 1, "verdict": 5}', None),
    ],
)
def test_a_verdict_is_read_at_the_end_of_the_judges_words(
    start: Start, block: dict[str, Any], words: str, score: float | None
):
    found, counts = judged(start(lambda body: said(words)), [Sample("q", ("r",))], **block)
    one = found.by_key["judge"]
    assert one.verdicts == {0: words}
    if score is None:
        assert math.isnan(one.scores[0])
        assert one.errors[0]
        assert counts["unreadable"] == QUICK.max_tries
    else:
        assert one.scores == [score]


def test_the_votes_that_can_be_read_are_averaged(start: Start):
    words = iter(["VERDICT: 5", "who knows", "VERDICT: 3"])
    server = start(lambda body: said(next(words)))
    block = {"read": "regex", "votes": 3, "temperature": 1.0, "concurrency": 1}
    found, _ = judged(server, [Sample("q", ("r",))], **block)
    assert found.by_key["judge"].scores == [0.75]
    assert [one["seed"] for one in server.requests] == [0, 1, 2]


def test_what_a_busy_server_refuses_is_sent_again(start: Start):
    answers = iter([(429, "later"), (503, "busy"), with_probs(**{"5": 1.0})])
    server = start(lambda body: next(answers))
    found, counts = judged(server, [Sample("q", ("r",))])
    assert found.by_key["judge"].scores == [1.0]
    assert counts["requests_again"] == 2


def test_the_pause_is_as_long_as_a_server_asks_for(start: Start, monkeypatch: pytest.MonkeyPatch):
    answers = iter([(429, "later"), (429, "later"), with_probs(**{"5": 1.0})])
    server = start(lambda body: next(answers))
    server.headers["Retry-After"] = "3"
    pauses: list[float] = []
    monkeypatch.setattr("rl_core.rewards.judging.served.time.sleep", pauses.append)
    found, _ = judged(server, [Sample("q", ("r",))], pause_s=2.0)
    assert found.by_key["judge"].scores == [1.0]
    assert pauses == [3.0, 4.0], "its own second pause is the longer one"


def test_a_judge_that_is_down_leaves_its_rows_without_a_verdict(start: Start):
    server = start(lambda body: (500, "broken"))
    found, _ = judged(server, [Sample("q", ("r",)), Sample("p", ("s",))], num_tries=2)
    one = found.by_key["judge"]
    assert all(map(math.isnan, one.scores))
    assert "answers 500" in str(one.errors[0])


@pytest.mark.parametrize("answer", [(401, "no such key"), (404, "no such model"), said("5")])
def test_a_refusal_ends_the_step_with_what_the_server_says_and_is_not_sent_again(
    start: Start, answer: tuple[int, Any]
):
    server = start(lambda body: answer)
    with pytest.raises(ServiceError, match=r"reward judge: http.*(no such|with logprobs)"):
        judged(server, [Sample("q", ("r",))])
    assert len(server.requests) == 1


def test_equal_questions_are_asked_once_and_kept(start: Start):
    server = start(lambda body: with_probs(**{"4": 1.0}))
    samples = [Sample("q", ("r",)), Sample("q", ("r",)), Sample("q", ("other",))]
    for _ in range(2):
        found, counts = judged(server, samples, max_cached=10)
        assert found.by_key["judge"].scores == [0.75] * 3
    assert len(server.requests) == 2
    assert (counts["requests"], counts["cached"]) == (0, 2)


def test_words_that_cannot_be_read_are_not_kept(start: Start):
    words = iter([*["who knows"] * QUICK.max_tries, "VERDICT: 5"])
    server = start(lambda body: said(next(words)))
    block = {"read": "regex", "max_cached": 10}
    sample = Sample("words that cannot be read", ("r",))
    assert math.isnan(judged(server, [sample], **block)[0].by_key["judge"].scores[0])
    assert judged(server, [sample], **block)[0].by_key["judge"].scores == [1.0]


def test_another_judge_is_asked_anew(start: Start):
    server = start(lambda body: with_probs(**{"4": 1.0}))
    for model in ("one", "other", "one"):
        judged(server, [Sample("q", ("r",))], model=model, max_cached=10)
    assert [one["model"] for one in server.requests] == ["one", "other"]


def test_the_oldest_answers_go_first(tmp_path: Path):
    cache = AnswerCache(tmp_path / "answers.sqlite", 2)
    for name in ("first", "second", "third"):
        cache.keep({name: Answer(name)})
    assert cache.found(["first", "second", "third"]) == {
        name: Answer(name) for name in ("second", "third")
    }
    cache.close()


def test_replies_are_compared_in_both_orders(start: Start):
    """The judge prefers the longer reply, but of equal ones, and against `biased`, the first."""

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        text = body["messages"][-1]["content"]
        first, second = (text.split(f"<{name} ")[1].split("\n")[1] for name in ("first", "second"))
        if "biased" in (first, second):
            return with_probs(A=0.9, B=0.1)
        return with_probs(A=0.8, B=0.2) if len(first) > len(second) else with_probs(A=0.2, B=0.8)

    server = start(answer)
    texts = ["long long", "mid mid", "biased", "mid mid"]
    samples = with_groups([Sample("q", (text,)) for text in texts], ["g"] * 4)
    found, counts = judged(server, samples, mode="pairwise")
    one = found.by_key["judge"]
    # Against two of `mid mid` and `biased`; against `long long`, `biased` and its twin.
    assert one.scores == pytest.approx([(0.8 + 0.8 + 0.5) / 3, (0.2 + 0.5 + 0.5) / 3, 0.5, 0.4])
    assert counts["disagreed"] == 6
    assert len(server.requests) == 6
    assert "turns with the order" in one.verdicts[2]
    anchored, _ = judged(server, samples, mode="pairwise", against="first")
    assert anchored.by_key["judge"].scores == pytest.approx([0.5, 0.2, 0.5, 0.2])
    row = Sample("q", ("long long",), metadata={"best": "short"})
    against_row, _ = judged(server, [row], mode="pairwise", against="row.best", swap=False)
    assert against_row.by_key["judge"].scores == pytest.approx([0.8])


def test_each_criterion_of_a_rubric_counts_by_its_weight(start: Start):
    server = start(
        lambda body: (
            with_probs(**{"5": 1.0})
            if "polite" in body["messages"][-1]["content"]
            else with_probs(**{"1": 1.0})
        )
    )
    rows = [{"rubric": ["Is it short?"]}, {"rubric": {"длина/長さ": "Is it short?"}}]
    samples = [Sample("q", ("r",), metadata=row) for row in rows]
    criteria = [{"name": "tone & care", "question": "Is it polite?", "weight": 3}]
    block = {"criteria": criteria, "column": "row.rubric"}
    found, _ = judged(server, samples, name="rubric", **block)
    one = found.by_key["rubric"]
    assert one.scores == [0.75, 0.75]
    assert one.parts == {
        0: {"tone & care": 1.0, "Is it short?": 0.0},
        1: {"tone & care": 1.0, "длина/長さ": 0.0},
    }
    assert "tone & care: 1" in one.verdicts[0]


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({}, r"row\.rubric of the row with the prompt 'q': expected a list"),
        ({"rubric": [3]}, r"\[0\]: expected a text or an object"),
        ({"rubric": [{"question": "?", "wieght": 2}]}, r"wieght.*did you mean 'weight'"),
    ],
)
def test_a_rows_rubric_that_is_none_is_the_users_fault(
    start: Start, row: dict[str, Any], match: str
):
    server = start(lambda body: with_probs(**{"5": 1.0}))
    with pytest.raises(RecipeError, match=match):
        judged(server, [Sample("q", ("r",), metadata=row)], name="rubric", column="row.rubric")
    assert not server.requests


def test_the_prompt_has_the_rows_fields(start: Start):
    server = start(lambda body: with_probs(**{"5": 1.0}))
    sample = Sample(
        "q", ("r",), ground_truth=["a", "b"], metadata={"extra_info": {"topic": "trains"}}
    )
    template = "{{x}} {row.extra_info.topic} {reference} {reply}"
    judged(server, [sample], template=template, mode="reference", system="")
    (message,) = server.requests[0]["messages"]
    lines = message["content"].split("\n")
    number = lines[0].removeprefix("{x} <topic ").removesuffix(">")
    assert lines[1:] == [
        *("trains", f"</topic {number}> <reference {number}>", "a", "b"),
        *(f"</reference {number}> <reply {number}>", "r", f"</reply {number}>"),
    ]
    with pytest.raises(RecipeError, match=r"field \{row\.extra_info\.topic\}.*no such value"):
        judged(server, [Sample("q", ("r",), ground_truth="a")], template=template, mode="reference")


@pytest.mark.parametrize(
    ("block", "match"),
    [
        ({"template": "{replly}"}, r"unknown field 'replly' \(did you mean 'reply'\?\)"),
        ({"template": "{prompt}"}, r"the field \{reply\} is missing"),
        ({"template": "{reply"}, "write a brace"),
        ({"mode": "pairwise", "against": "best"}, r"against: give siblings, first"),
        ({"scale": [1, 10]}, "a scale within 0 to 9"),
        ({"votes": 3}, "set temperature"),
        ({"read": "regex", "pattern": "("}, "not a regular expression"),
        ({"labels": {"yes": 1, "Yes": 0}}, "different words"),
        ({"url": "localhost:1"}, "https"),
    ],
)
def test_a_judge_that_cannot_work_is_refused_with_the_recipe(block: dict[str, Any], match: str):
    with pytest.raises(RecipeError, match=match):
        resolve_scorers([{"name": "judge", "model": "m"} | block])
