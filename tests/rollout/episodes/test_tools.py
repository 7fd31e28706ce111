"""Tools that a chat template shows: what the model reads, and what preparation counts, are one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.prepare.prompt_lengths import LengthCounter
from rl_core.envs.tool_env.offer import Offers, described_tools
from rl_core.errors import DataError, ModelError
from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.decoding.request import Reply, Request, StopReason
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.loop import run_episodes
from rl_core.rollout.episodes.tools import check_shows_tools

OPTIONS: dict[str, dict[str, Any]] = {
    "calculator": {"tools": ["tests.envs.tool_env.tools_of_tests:add"], "max_turns": 3}
}
SHOWN = (
    "{% if tools %}<|im_start|>system\n<tool_call>{% for tool in tools %}{{ tool | tojson }}"
    "{% endfor %}<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CALL = '<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call><|im_end|>'


def chat_of(folder: Path, template: str | None = None) -> ChatFormat:
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = template or tokenizer.chat_template
    return ChatFormat(tokenizer, {})


@pytest.fixture
def item() -> dict[str, Any]:
    prompt = [{"role": "user", "content": "3+4?"}]
    extras = {"reward_spec": {"ground_truth": "7"}}
    return {"uid": "a", "prompt": prompt, "env_class": "calculator", "env_extras": extras}


def script(chat: ChatFormat, *texts: str) -> Callable[[list[Request]], list[Reply]]:
    left = list(texts)

    def generate(requests: list[Request]) -> list[Reply]:
        ids = chat.tokenizer.encode(left.pop(0))
        return [Reply(ids, [-1.0] * len(ids), StopReason.EOS) for _ in requests]

    return generate


def test_the_policy_reads_what_the_template_writes(tiny_model_dir: Path, item: dict[str, Any]):
    chat = chat_of(tiny_model_dir, SHOWN)
    answers = script(chat, CALL, "7<|im_end|>")
    (episode,) = run_episodes([item], 1, chat, answers, OPTIONS, 4096)
    assert episode.error is None
    assert episode.reward == 1
    assert episode.env_metrics["tool_calls"] == 1
    told = [
        *item["prompt"],
        {"role": "assistant", "content": CALL.removesuffix("<|im_end|>")},
        {"role": "tool", "content": "7"},
    ]
    before = chat.encode(told, episode.tools)
    assert episode.context[: len(before)] == before
    assert '"add"' in chat.tokenizer.decode(episode.prompt_ids)
    assert [turn["role"] for turn in episode.turns] == ["assistant", "tool", "assistant"]


@pytest.mark.parametrize("show", ["template", "system"])
def test_preparation_counts_the_tokens_of_the_rollout(
    tiny_model_dir: Path, tmp_path: Path, item: dict[str, Any], show: str
):
    chat = chat_of(tiny_model_dir, SHOWN if show == "template" else None)
    options = {"calculator": {**OPTIONS["calculator"], "show_tools": show}}
    answers = script(chat, "7<|im_end|>", "7<|im_end|>")
    own = {"type": "function", "function": {"name": "add", "description": "Plus, and more."}}
    other = {**item, "env_extras": {**item["env_extras"], "tools": [own]}}
    first = run_episodes([item], 1, chat, answers, options, 4096)
    second = run_episodes([other], 1, chat, answers, options, 4096)
    counter = LengthCounter(chat.tokenizer, offer=Offers(options), cache_dir=tmp_path)
    played = [len(episode.prompt_ids) for episode in (*first, *second)]
    assert counter.lengths([item, other], ["a:1", "a:2"]) == played
    assert played[0] != played[1]
    bare = LengthCounter(chat.tokenizer, cache_dir=tmp_path)
    assert bare.lengths([item], ["a:1"])[0] < played[0]


def test_a_picture_in_an_observation_is_refused_by_a_model_of_text(tiny_model_dir: Path):
    told = [{"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}]
    with pytest.raises(DataError, match="role tool holds a part of type 'image'"):
        chat_of(tiny_model_dir).observation(told, after=[])


def test_a_row_with_a_bad_tool_is_named(tiny_model_dir: Path, item: dict[str, Any]):
    chat = chat_of(tiny_model_dir, SHOWN)
    counter = LengthCounter(chat.tokenizer, offer=Offers(OPTIONS))
    bad = {**item, "env_extras": {**item["env_extras"], "tools": json.dumps([{"name": "sub"}])}}
    with pytest.raises(DataError, match=r"rows.jsonl:7: .*tools\[0\]\.name: .* no tool 'sub'"):
        counter.lengths([item, bad], ["rows.jsonl:6", "rows.jsonl:7"])


def test_a_template_without_tools_is_refused(tiny_model_dir: Path):
    silent = chat_of(tiny_model_dir)
    with pytest.raises(ModelError, match=r"environments\.calculator: .* does not show tools"):
        check_shows_tools(silent, OPTIONS)
    system = {"calculator": {**OPTIONS["calculator"], "show_tools": "system"}}
    check_shows_tools(silent, system)
    formless = chat_of(tiny_model_dir, SHOWN.replace("<tool_call>", ""))
    with pytest.raises(ModelError, match="does not tell in which form calls are written"):
        check_shows_tools(formless, OPTIONS)
    check_shows_tools(formless, {"calculator": {**OPTIONS["calculator"], "tool_format": "llama"}})
    check_shows_tools(chat_of(tiny_model_dir, SHOWN), OPTIONS)


def test_the_hash_of_prepared_rows_has_the_tools_of_environments_that_have_some():
    assert described_tools({"gsm8k": {}, "code": {"target": "rl_core.envs.lcb:LCBEnv"}}) == ""
    described = described_tools(OPTIONS)
    assert "Add two numbers." in described
    turns = {"calculator": {**OPTIONS["calculator"], "max_turns": 9}}
    assert described_tools(turns) == described
