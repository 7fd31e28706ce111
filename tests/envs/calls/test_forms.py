"""Calls of tools in the forms of model families."""

import json

import pytest

from rl_core.envs.calls.form import Call
from rl_core.envs.calls.forms import FORMS, ToolFormat, form_of

WEATHER = Call("weather", json.dumps({"city": "Zürich", "days": 2}, ensure_ascii=False))
CLOCK = Call("clock", "{}")

WRITTEN = {
    ToolFormat.HERMES: [
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>'
        '\n<tool_call>{"name": "clock", "arguments": {}}',
    ],
    ToolFormat.LLAMA: [
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Zürich", "days": 2}}; '
        '{"name": "clock", "parameters": {}}',
    ],
    ToolFormat.MISTRAL: [
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}, '
        '{"name": "clock", "arguments": {}}]',
        '[TOOL_CALLS]weather[ARGS]{"city": "Zürich", "days": 2}[TOOL_CALLS]clock[ARGS]{}',
    ],
    ToolFormat.PYTHONIC: [
        '[weather(city="Zürich", days=2), clock()]',
        '<|tool_call_start|>[weather(city="Zürich", days=2), clock()]<|tool_call_end|>',
    ],
}


@pytest.mark.parametrize("name", list(ToolFormat))
def test_calls_are_read(name: ToolFormat):
    for text in WRITTEN[name]:
        parsed = FORMS[name].parse(text)
        assert parsed.calls == [WEATHER, CLOCK]
        assert parsed.content == ""


@pytest.mark.parametrize("name", list(ToolFormat))
def test_text_and_damaged_calls_stay_text(name: ToolFormat):
    damaged = [text[:-12] for text in WRITTEN[name]]
    odd = ['{"name": 3}', "[1, 2]", "<tool_call>[]</tool_call>", "[f(**a)]", "[TOOL_CALLS]", "["]
    for text in ["plain words", "", *odd, *damaged]:
        parsed = FORMS[name].parse(text)
        assert (parsed.content, parsed.calls) == (text, [])


def test_text_before_calls_is_content():
    hermes = FORMS[ToolFormat.HERMES].parse('Look:\n<tool_call>{"name": "clock"}</tool_call>')
    mistral = FORMS[ToolFormat.MISTRAL].parse("Look:[TOOL_CALLS]clock{}")
    for parsed in (hermes, mistral):
        assert (parsed.content, parsed.calls) == ("Look:", [CLOCK])


@pytest.mark.parametrize("name", list(ToolFormat))
def test_a_forced_beginning_goes_on_to_a_call(name: ToolFormat):
    form = FORMS[name]
    rest = {
        ToolFormat.HERMES: "{}}</tool_call>",
        ToolFormat.LLAMA: "{}}",
        ToolFormat.MISTRAL: "{}}]",
        ToolFormat.PYTHONIC: ")]",
    }[name]
    assert form.parse(form.forced("clock") + rest).calls == [CLOCK]


def test_the_form_is_that_of_the_template():
    assert form_of("… <tool_call> …") is FORMS[ToolFormat.HERMES]
    assert form_of("… [TOOL_CALLS] …") is FORMS[ToolFormat.MISTRAL]
    assert form_of("{{ messages }}") is None


@pytest.mark.parametrize("name", list(ToolFormat))
def test_a_damaged_call_is_told_from_an_answer(name: ToolFormat):
    form = FORMS[name]
    for text in WRITTEN[name]:
        assert form.tries(text)
        assert form.tries(text[:-12])
    for answer in ("plain words", "", "[1, 2]", '{"answer": 3}', "7"):
        assert not form.tries(answer)
