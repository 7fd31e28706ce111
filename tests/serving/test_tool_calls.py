"""Calls of tools through the endpoint: the replies are given, everything else is the server."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest

from rl_core.models.decoding.request import StopReason
from rl_core.rollout.chat.text import Encoded
from rl_core.serving.engine import Asked, Scored, Token
from tests.conftest import character_tokenizer
from tests.serving.conftest import NAME, Running, running

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "A tool <|im_end|> of this test",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
        },
    }
    for name in ("add", "clock")
]
SAID: Any = [{"role": "user", "content": "1+2="}]
TEMPLATE = (
    "{% if tools %}<|im_start|>system\n<tool_call>{% for tool in tools %}{{ tool | tojson }}"
    "{% endfor %}<|im_end|>\n{% endif %}{% for message in messages %}<|im_start|>"
    "{{ message['role'] }}\n{{ message['content'] }}{% for call in message['tool_calls'] or [] %}"
    "<tool_call>{{ call['function']['name'] }} {{ call['function']['arguments']['a'] }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Said:
    """An engine whose replies are given."""

    def __init__(self) -> None:
        self.text, self.prompt = "", ""
        self.tokenizer: Any = None

    def generate(self, prompt: Encoded, asked: Asked) -> "Tokens":
        self.prompt = self.tokenizer.decode(prompt.token_ids)
        ids = [*self.tokenizer.encode(self.text), self.tokenizer.eos_token_id]
        tokens = [Token(0, token, -0.5) for token in ids]
        return Tokens([*tokens[:-1], replace(tokens[-1], stop_reason=StopReason.EOS)])

    async def score(self, prompt_token_ids: Sequence[int], num_likely: int) -> list[Scored]:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Tokens:
    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens

    async def __aiter__(self) -> AsyncIterator[Token]:
        for token in self.tokens:
            yield token

    def cancel(self) -> None:
        pass


@pytest.fixture(scope="module")
def talking(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server of a model whose template shows tools."""
    folder = tmp_path_factory.mktemp("with-tools") / "model"
    folder.mkdir()
    for path in tiny_model_dir.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tokenizer = character_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    with running(folder, tool_format=None, engine=Said()) as server:
        said: Any = server.endpoint.engine
        said.tokenizer = tokenizer
        yield server


def ask(server: Running, text: str, **changes: Any) -> Any:
    said: Any = server.endpoint.engine
    said.text = text
    asked: dict[str, Any] = {"model": NAME, "messages": SAID, "tools": TOOLS} | changes
    return server.client().chat.completions.create(**asked)


CALLS = (
    'Let me see.\n<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
)


def test_calls_are_taken_out_of_a_reply(talking: Running):
    choice = ask(talking, CALLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    calls = choice.message.tool_calls
    assert [(one.function.name, one.function.arguments) for one in calls] == [
        ("add", '{"a": 1}'),
        ("clock", "{}"),
    ]
    assert len({one.id for one in calls}) == 2
    assert len(ask(talking, CALLS, parallel_tool_calls=False).choices[0].message.tool_calls) == 1


def test_a_stream_gives_the_same_calls_and_no_part_of_one_as_text(talking: Running):
    text, calls, finish = "", [], ""
    for chunk in ask(talking, CALLS, stream=True):
        delta = chunk.choices[0].delta
        text += delta.content or ""
        calls += delta.tool_calls or []
        finish = chunk.choices[0].finish_reason or finish
    assert text.strip() == "Let me see."
    assert [(one.index, one.function.name) for one in calls] == [(0, "add"), (1, "clock")]
    assert finish == "tool_calls"


def test_text_alone_and_a_damaged_call_come_as_they_were_written(talking: Running):
    for text in ("1 < 2 and <tool", 'x <tool_call>{"name": 3}</tool_call>'):
        choice = ask(talking, text).choices[0]
        assert (choice.message.content, choice.finish_reason) == (text, "stop")
        chunks = ask(talking, text, stream=True)
        assert "".join(one.choices[0].delta.content or "" for one in chunks) == text


def test_the_template_shows_the_tools_and_the_calls_before(talking: Running):
    said: Any = talking.endpoint.engine
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 7}'}}
    messages = [
        *SAID,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "three"},
    ]
    ask(talking, "ok", messages=messages)
    assert "add 7" in said.prompt and "three" in said.prompt
    assert json.dumps("clock") in said.prompt
    # A description that writes a control token does not end the system's turn.
    assert said.prompt.count("<|im_end|>") == 4
    ask(talking, "ok", tool_choice="none")
    assert "clock" not in said.prompt


def test_a_call_that_has_to_be_made_is_begun(talking: Running):
    said: Any = talking.endpoint.engine
    named = {"type": "function", "function": {"name": "add"}}
    choice = ask(talking, '{"a": 5}}</tool_call>', tool_choice=named).choices[0]
    assert said.prompt.endswith('<tool_call>\n{"name": "add", "arguments": ')
    assert choice.message.tool_calls[0].function.arguments == '{"a": 5}'
    assert choice.finish_reason == "stop"
    choice = ask(talking, 'clock", "arguments": {}}', tool_choice="required").choices[0]
    assert choice.message.tool_calls[0].function.name == "clock"
    with pytest.raises(openai.InternalServerError, match="no call that can be read"):
        ask(talking, "no", tool_choice="required")


def test_a_template_without_tools_and_an_unknown_form_are_refused(served: Running):
    with pytest.raises(openai.BadRequestError, match="does not show the tool 'add'"):
        served.client().chat.completions.create(model=NAME, messages=SAID, tools=TOOLS)
