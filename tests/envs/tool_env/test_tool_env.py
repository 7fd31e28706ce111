"""Conversations in which a model calls functions."""

import json
from typing import Any

import pytest

from rl_core.data.read.row_images import open_image
from rl_core.envs import make
from rl_core.envs.calls.forms import FORMS, ToolFormat
from rl_core.errors import EnvError
from rl_core.rollout.chat.observed import parts_of
from tests.envs.tool_env import tools_of_tests

HERE = "tests.envs.tool_env.tools_of_tests"
ROW = {"reward_spec": {"ground_truth": "7"}}


def env_of(*names: str, row: dict[str, Any] | None = None, **options: Any) -> Any:
    tools = [{"function": f"{HERE}:{name}"} for name in names or ("add",)]
    return make("calculator", {"tools": tools, **options}, {**ROW, **(row or {})})


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def said(turn: Any) -> list[str]:
    assert {message["role"] for message in turn["observations"]} == {"tool"}
    return [message["content"] for message in turn["observations"]]


def test_a_function_is_described_by_its_signature_and_docstring():
    (tool,) = env_of("add").tools
    assert tool["type"] == "function"
    assert tool["function"]["name"] == "add"
    assert tool["function"]["description"] == "Add two numbers."
    assert tool["function"]["parameters"]["required"] == ["a"]
    assert tool["function"]["parameters"]["properties"] == {
        "a": {"type": "integer"},
        "b": {"type": "integer", "default": 1, "description": "The second number."},
    }


def test_a_call_is_answered_and_the_last_reply_is_graded():
    env = env_of(graded_by="exact_match")
    turn = env.step(f"Let me see. {called('add', a=3, b=4)}")
    assert (said(turn), turn["reward"], turn["done"]) == (["7"], 0.0, False)
    last = env.step("7")
    assert (last["reward"], last["done"], last["observations"]) == (1.0, True, [])
    assert env.get_metrics()["tool_calls"] == 1
    assert env.get_metrics()["turns"] == 2


def test_what_a_call_has_is_never_the_answer():
    env = env_of(max_turns=1)
    assert env.step(called("add", a=7))["reward"] == 0
    assert env_of(max_turns=1).step(f"7 {called('add', a=7)}")["reward"] == 1


def test_calls_of_a_turn_run_at_once():
    env = env_of("meet")
    assert said(env.step(called("meet") + called("meet"))) == ["met", "met"]


def test_errors_and_hanging_tools_are_observations():
    env = env_of("add", "hang", "fail", "later", tool_timeout_s=0.2)
    try:
        answers = said(
            env.step(
                called("hang")
                + called("fail", title="luck")
                + called("ad", a=1)
                + called("add", a="x", c=1)
                + called("later", words=["ab"])
            )
        )
    finally:
        tools_of_tests.waits.set()
    assert answers[0] == "error: no answer within 0.2 s"
    assert answers[1] == "error: ValueError: no luck"
    assert answers[2] == "error: there is no tool 'ad' (did you mean 'add'?)"
    assert "a: Input should be a valid integer" in answers[3]
    assert "c: Unexpected keyword argument" in answers[3]
    assert answers[4] == '{"ab": 2}'
    metrics = env.get_metrics()
    assert (metrics["tool_calls"], metrics["tool_errors"], metrics["tool_timeouts"]) == (5, 4, 1)


@pytest.mark.parametrize("name", list(ToolFormat))
def test_a_damaged_call_is_answered_with_the_right_form(name: ToolFormat):
    env = env_of(tool_format=name)
    (answer,) = said(env.step(FORMS[name].forced("add") + "3, "))
    assert answer.startswith("error: the call cannot be read")
    assert FORMS[name].forced("add").strip() in answer
    assert env.get_metrics()["malformed_tool_calls"] == 1
    assert env.get_metrics()["tool_calls"] == 0


@pytest.mark.parametrize("name", list(ToolFormat))
def test_replies_of_any_family_are_played_again(name: ToolFormat):
    call = FORMS[name].forced("add") + {"pythonic": "a=3, b=4)]"}.get(name, '{"a": 3, "b": 4}}')
    assert said(env_of().step(call + ("]" if name == "mistral" else ""))) == ["7"]


def test_a_row_chooses_and_describes_its_tools():
    own = {"type": "function", "function": {"name": "add", "description": "Plus."}}
    env = env_of("add", "fail", row={"tools": json.dumps([own])})
    assert [tool["function"]["description"] for tool in env.tools] == ["Plus."]
    assert said(env.step(called("fail", title="x")))[0].startswith("error: there is no tool 'fail'")
    assert env_of("add", row={"extra_info": {"tools": [own]}}).tools == env.tools


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("[{", "tools: no JSON"),
        ({"name": "add"}, "tools: must be a list"),
        ([3], r"tools\[0\]: must be .* got 3"),
        ([{"function": {"name": ""}}], r"tools\[0\]\.function\.name: must be the name"),
        ([{"name": "adder"}], r"tools\[0\]\.name: .*did you mean 'add'"),
        (
            [
                {
                    "name": "add",
                    "parameters": {"type": "object", "properties": {"a": {"type": "int"}}},
                }
            ],
            r"tools\[0\]\.parameters\.properties\.a\.type: no JSON schema: 'int'",
        ),
        (
            [{"name": "add", "parameters": {"type": "array"}}],
            "must be a JSON schema of type object",
        ),
        ([{"name": "add"}, {"name": "add"}], "declared twice"),
    ],
)
def test_a_bad_schema_in_a_row_is_refused(tools: object, message: str):
    with pytest.raises(EnvError, match=message):
        env_of("add", row={"tools": tools})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [f"{HERE}:untyped"]}, "the argument a has no type"),
        ({"tools": [f"{HERE}:undescribed"]}, "has no docstring"),
        ({"tools": [f"{HERE}:missing"]}, "cannot be imported"),
        ({"tools": ["bash"]}, "use python"),
        ({"tools": [{"mcp": {}}]}, "give command .* or url"),
        ({"tools": [{"mcp": {"url": "ftp://a"}}]}, "must begin with http"),
        ({"tools": [{"function": f"{HERE}:add", "only": ["a"]}]}, "only chooses"),
        ({"tools": [f"{HERE}:add", f"{HERE}:add"]}, "two tools have the name 'add'"),
        ({"tools": []}, "names no tool"),
        ({"tools": [f"{HERE}:add"], "graded_by": "gsm"}, "unknown environment 'gsm'"),
    ],
)
def test_a_bad_setting_is_refused(options: dict[str, Any], message: str):
    with pytest.raises(EnvError, match=message):
        make("calculator", options, ROW)


def test_a_long_answer_is_cut_in_the_middle():
    env = env_of("later", max_answer_characters=100)
    (answer,) = said(env.step(called("later", words=["x" * 500])))
    assert "characters left out" in answer
    assert len(answer) < 150


@pytest.mark.parametrize(
    ("name", "arguments", "kinds"),
    [
        ("draw", {}, ["image"]),
        ("mix", {}, ["image", "text"]),
        ("look", {"at": ["a" * 300, "b"]}, ["text", "image"] * 2),
    ],
)
def test_pictures_of_a_function_are_parts_of_the_message(
    name: str, arguments: dict[str, Any], kinds: list[str]
):
    turn = env_of(name, max_answer_characters=100).step(called(name, **arguments))
    (message,) = turn["observations"]
    assert (message["role"], message["name"]) == ("tool", name)
    parts = list(parts_of(message))
    assert [kind for kind, _ in parts] == kinds
    for kind, value in parts:
        if kind == "image":
            assert open_image(value).size == ((2, 3) if name == "look" else (4, 4))
        else:
            assert len(value) < 150


def test_a_class_brings_its_own_tools_and_grading():
    env = make("loud", {"target": f"{HERE}:Shouting"}, ROW)
    assert said(env.step(called("shout", text="hey"))) == ["HEY"]
    assert env.step("HEY")["reward"] == 1


def test_a_prefilled_call_is_part_of_the_reply():
    env = env_of()
    begun = '<tool_call>{"name": "add", "arguments": {"a": '
    env.init([{"role": "user", "content": "3+4?"}, {"role": "assistant", "content": begun}])
    assert said(env.step('3, "b": 4}}</tool_call>')) == ["7"]
    assert env.step("7")["reward"] == 1


def test_examples_stand_before_the_rows_own_messages():
    examples = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    asked = [{"role": "system", "content": "Add."}, {"role": "user", "content": "3+4?"}]
    prompt, _ = env_of(examples=examples).init(asked)
    assert prompt == [asked[0], *examples, asked[1]]
    shown, _ = env_of(examples=examples, show_tools="system").init(asked[1:])
    assert [message["role"] for message in shown] == ["system", "user", "assistant", "user"]


def test_python_runs_in_the_sandbox():
    env = make("programs", {"tools": ["python"]}, ROW)
    try:
        assert said(env.step(called("python", code="print(3 + 4)"))) == ["7\n"]
        assert said(env.step(called("python")))[0].startswith("error: code: must be")
    finally:
        env.close()


def test_tools_in_the_system_message_are_hermes():
    env = env_of(show_tools="system")
    prompt, _ = env.init([{"role": "user", "content": "3+4?"}])
    assert [message["role"] for message in prompt] == ["system", "user"]
    assert '"name": "add"' in prompt[0]["content"]
    assert "<tool_call>" in prompt[0]["content"]
    assert env.template_tools == []
