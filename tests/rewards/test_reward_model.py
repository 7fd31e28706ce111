"""The scorer `reward_model`: a folder, batches and lengths, a server, and one that is down."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.data_proto import DataProto
from rl_core.errors import ModelError, RecipeError
from rl_core.rewards.base import Sample
from rl_core.rewards.resolve import resolve_scorers
from rl_core.rewards.samples import samples_of
from rl_core.rewards.service import RewardService
from schemas.sections.rewards import RewardServiceConfig


@pytest.fixture(scope="module")
def folder(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reward model of random weights, as any tool would save one."""
    from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

    out = tmp_path_factory.mktemp("reward-model")
    config = AutoConfig.from_pretrained(tiny_model_dir, num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model_dir)
    config.pad_token_id = tokenizer.pad_token_id
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        model.score.weight.normal_()
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return out


def conversation(*texts: str) -> tuple[dict[str, str], ...]:
    roles = ("user", "assistant")
    return tuple({"role": roles[i % 2], "content": text} for i, text in enumerate(texts))


CONVERSATIONS = [
    conversation("say 1", "yes"),
    conversation("say 2", "a much longer reply than that"),
    conversation("say 3", "what?", "three", "no"),
    conversation("say 4", "x"),
]


def sample(messages: tuple[dict[str, str], ...]) -> Sample:
    replies = tuple(one["content"] for one in messages if one["role"] == "assistant")
    return Sample(prompt=messages[-2]["content"], replies=replies, messages=messages)


def by_transformers(folder: Path, messages: tuple[dict[str, str], ...], last: int = 10**6) -> float:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    text = tokenizer.apply_chat_template(list(messages), tokenize=False)
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"][:, -last:]
    with torch.no_grad():
        return float(model(input_ids=ids).logits[0, 0])


def service(**block: Any) -> RewardService:
    config = RewardServiceConfig(max_tries=2, backoff_s=0.0)
    return RewardService([{"name": "reward_model", **block}], config)


def test_whole_conversations_get_the_scores_of_transformers(folder: Path) -> None:
    asked = service(model=str(folder), batch_size=3)
    found = asked.score_samples([sample(one) for one in CONVERSATIONS]).by_key["reward_model"]
    wanted = [by_transformers(folder, one) for one in CONVERSATIONS]
    assert found.scores == pytest.approx(wanted, abs=1e-5)
    assert len(set(found.scores)) == len(wanted)
    none = asked.score_samples([Sample(prompt="say 1")]).by_key["reward_model"]
    assert math.isnan(none.scores[0]) and "no reply" in str(none.errors[0])


def test_a_truncated_conversation_is_counted(folder: Path) -> None:
    rows = DataProto.from_dict(
        {"last_reply_tokens": torch.ones(2)},
        {
            "prompt": [[CONVERSATIONS[0][0]], [CONVERSATIONS[1][0]]],
            "replies": [["yes"], ["a much longer reply than that"]],
        },
    )
    lengths = [len(one.conversation) for one in samples_of(rows)]
    assert lengths == [2, 2]
    limit = 40
    found = service(model=str(folder), max_length=limit).score(rows)
    metrics = found.meta_info["metrics"]
    wanted = [by_transformers(folder, one, last=limit) for one in CONVERSATIONS[:2]]
    assert found.tensor("scores")[:, 0].tolist() == pytest.approx(wanted, abs=1e-5)
    assert metrics["reward/reward_model/truncated"].value == sum(
        score != pytest.approx(by_transformers(folder, one), abs=1e-5)
        for score, one in zip(wanted, CONVERSATIONS[:2], strict=True)
    )
    assert metrics["reward/reward_model/truncated"].value > 0


def test_turns_of_environments_are_part_of_the_conversation() -> None:
    turns = [
        {"role": "assistant", "content": "a", "reward": 0.0},
        {"role": "user", "content": "tool says b"},
        {"role": "assistant", "content": "c", "reward": 1.0},
    ]
    rows = DataProto.from_dict(
        {"last_reply_tokens": torch.ones(1)},
        {
            "prompt": [[{"role": "system", "content": "s"}, {"role": "user", "content": "q"}]],
            "replies": [["a", "c"]],
            "turns": [turns],
        },
    )
    said = samples_of(rows)[0].conversation
    assert [one["content"] for one in said] == ["s", "q", "a", "tool says b", "c"]


class Pooling(BaseHTTPRequestHandler):
    """vLLM's pooling API: the score is the length of the last message."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        said = body["messages"][-1]["content"]
        status, answer = 200, {"data": [{"index": 0, "data": [float(len(said))]}]}
        if said == "x":
            status, answer = 500, {"error": "out of memory"}
        if self.path == "/classify":
            answer = {"data": [{"index": 0, "probs": [0.25, 0.75]}]}
        sent = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Pooling)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_scores_messages_and_its_failures_are_no_zeros(url: str) -> None:
    samples = [sample(one) for one in CONVERSATIONS]
    found = service(model="rm", url=url).score_samples(samples).by_key["reward_model"]
    assert found.scores[:3] == [3.0, 29.0, 2.0]
    assert math.isnan(found.scores[3]) and "out of memory" in str(found.errors[3])
    two = service(model="rm", url=f"{url}/classify").score_samples(samples[:1])
    assert "holds no single score" in str(two.by_key["reward_model"].errors[0])


def test_a_server_that_is_down_leaves_rows_without_a_score() -> None:
    asked = service(model="rm", url="http://127.0.0.1:9", request_timeout_s=2.0)
    found = asked.score_samples([sample(CONVERSATIONS[0])]).by_key["reward_model"]
    assert math.isnan(found.scores[0]) and "ConnectError" in str(found.errors[0])


def test_what_is_no_reward_model_is_refused(tiny_model_dir: Path) -> None:
    with pytest.raises(ModelError, match="expected a sequence classifier with one"):
        service(model=str(tiny_model_dir))
    for block, words in (
        ({"model": "rm", "url": "http://a/score"}, "the scorer remote"),
        ({"model": "rm", "url": "http://a", "device": "cuda:1"}, "leave them out"),
    ):
        with pytest.raises(RecipeError, match=words):
            resolve_scorers([{"name": "reward_model", **block}])


def test_the_base_class_says_what_only_prompt_and_replies_give() -> None:
    plain = Sample(prompt="q", replies=("a",))
    assert [one["content"] for one in plain.conversation] == ["q", "a"]
