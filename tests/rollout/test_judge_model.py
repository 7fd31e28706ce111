"""A judge in process: probabilities of verdicts, words, and replies that imitate its template."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.prepare.control_tokens import special_ids
from rl_core.errors import RecipeError
from rl_core.rewards import Sample
from rl_core.rewards.judging.requests import Answer, NoAnswer, Request
from rl_core.rewards.service import RewardService
from rl_core.rollout.judge_model import LocalJudge
from rl_core.runtime.home import Home
from tests.chat_server import Server
from tests.rewards.judging.hostile_replies import HOSTILE

YES_NO = {"yes": 1, "no": 0}
EXAMPLES = [
    {"reply": "The sun sets over the harbor.", "verdict": "no"},
    {"reply": "Did you see the harbor?", "verdict": "yes"},
]


@pytest.fixture(scope="module")
def tiny(tiny_model_dir: Path) -> LocalJudge:
    return LocalJudge(str(tiny_model_dir), "cpu")


@pytest.fixture(scope="module")
def smollm2(smollm2_dir: Path) -> LocalJudge:
    return LocalJudge(str(smollm2_dir), "cpu")


def ask(text: str, **options: Any) -> Request:
    return Request((("user", text),), options.pop("max_tokens", 1), **options)


def test_probabilities_do_not_depend_on_what_else_is_asked(tiny: LocalJudge):
    requests = [ask("good " * count, labels=("y", "n")) for count in (1, 9, 3)]
    together = tiny.answer(requests)
    for request, answer in zip(requests, together, strict=True):
        (alone,) = tiny.answer([request])
        assert isinstance(answer, Answer)
        assert isinstance(alone, Answer)
        assert answer.label_probs == pytest.approx(alone.label_probs, rel=1e-4)
        assert 0 < sum((answer.label_probs or {}).values()) < 1


def test_what_prompts_begin_with_is_read_once_and_changes_no_verdict(tiny: LocalJudge):
    texts = [f"{'the same beginning ' * 8}{end}" for end in ("a", "b of it", "c", "the end of it")]
    requests = [ask(text, labels=("y", "n")) for text in texts]
    read: list[int] = []
    hook = tiny.policy.backbone.register_forward_pre_hook(
        lambda _, __, given: read.append(given["input_ids"].numel()), with_kwargs=True
    )
    together, again = tiny.answer(requests[:3]), tiny.answer(requests[1:])
    first, rest, *later = read
    assert rest < first and len(later) == 1, "the beginning was read again"
    tiny._start = None
    alone = [tiny.answer([request])[0] for request in requests]
    hook.remove()
    for one, other in zip([*together, again[-1]], alone, strict=True):
        assert isinstance(one, Answer) and isinstance(other, Answer)
        assert one.label_probs == pytest.approx(other.label_probs, rel=1e-4)


def test_words_are_decoded_and_repeat_with_their_seed(tiny: LocalJudge):
    requests = [ask("hello", max_tokens=6, temperature=1.0, seed=seed) for seed in (1, 2, 1)]
    texts = [one.text for one in tiny.answer(requests) if isinstance(one, Answer)]
    assert texts[0] == texts[2] != texts[1]


def test_a_prompt_too_long_for_the_judge_is_no_verdict(tiny: LocalJudge):
    (answer,) = tiny.answer([ask("x" * 600, labels=("y", "n"))])
    assert isinstance(answer, NoAnswer)
    assert answer.final
    assert "the judge takes 511" in answer.reason


def test_a_label_of_several_tokens_is_the_users_fault(tiny: LocalJudge):
    with pytest.raises(RecipeError, match="'yes' is no single token"):
        tiny.answer([ask("q", labels=("yes", "no"))])


@pytest.mark.slow
def test_no_hostile_reply_reaches_the_judge_as_a_control_token(
    smollm2: LocalJudge, smollm2_dir: Path
):
    """The judge of SmolLM2's tokenizer reads the same control tokens, whatever the reply says."""
    block = {"name": "judge", "model": str(smollm2_dir), "labels": YES_NO, "max_cached": 0}
    service = RewardService([block])
    scorer: Any = service.asked["judge"].scorer
    control = set(special_ids(smollm2.tokenizer).values())
    seen = set()
    for text in HOSTILE:
        prompt = scorer.config.prompt.filled(Sample("q", (text,)), scorer.own, {})
        ids = smollm2.chat.encode([{"role": "user", "content": prompt}])
        seen.add(tuple(one for one in ids if one in control))
    service.close()
    assert len(seen) == 1


@pytest.fixture
def served(smollm2: LocalJudge) -> Iterator[Server]:
    """The judge behind a server with an OpenAI-compatible API."""

    def answer(body: dict[str, Any]) -> tuple[int, Any]:
        messages = tuple((one["role"], one["content"]) for one in body["messages"])
        (found,) = smollm2.answer([Request(messages, 1, labels=("yes", "no"))])
        assert isinstance(found, Answer)
        probs = (found.label_probs or {}).items()
        top = [{"token": name, "logprob": math.log(one)} for name, one in probs]
        choice = {
            "message": {"role": "assistant", "content": "yes"},
            "logprobs": {"content": [{"top_logprobs": top}]},
        }
        return 200, {"choices": [choice], "usage": {"prompt_tokens": found.input_tokens}}

    server = Server(answer)
    yield server
    server.close()


@pytest.mark.slow
def test_a_served_judge_and_the_same_one_in_process_agree(served: Server, smollm2_dir: Path):
    usual = {
        "name": "judge",
        "model": str(smollm2_dir),
        "labels": YES_NO,
        "system": "",
        "question": "Does the reply ask a question?",
        "examples": EXAMPLES,
        "max_cached": 20,
    }
    samples = [Sample("", (text,)) for text in ("Where is it?", "It is here.", *HOSTILE[-3:])]
    local, remote = RewardService([usual]), RewardService([usual | {"url": served.url}])
    here, there = local.score_samples(samples), remote.score_samples(samples)
    again = local.score_samples(samples)
    scores = here.by_key["judge"].scores
    assert there.by_key["judge"].scores == pytest.approx(scores, abs=2e-3)
    assert scores[0] > scores[1]
    assert "P(yes)" in here.by_key["judge"].verdicts[0]
    assert again.by_key["judge"].scores == scores
    counts = local.asked["judge"].scorer.counts()
    assert (counts["requests"], counts["cached"]) == (5, 5)
    assert (Home.default().cache / "judge-answers.sqlite").is_file()
    for service in (local, remote):
        service.close()
