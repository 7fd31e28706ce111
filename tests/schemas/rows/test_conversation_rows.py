"""Conversation rows: the shapes of other systems, and what is refused with its field."""

from typing import Any

import pytest

from schemas.rows.conversation_rows import conversation_contract, conversation_row

ASK, TELL = {"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}
ENVIRONMENTS = {"exact_match": frozenset({"string"})}


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [ASK, TELL]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "1+1?"}]}, TELL]},
        {"prompt": "1+1?", "completion": "2"},
        {"prompt": [ASK], "completion": [TELL]},
        {"conversations": [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]},
        {"instruction": "1+1?", "input": "", "output": "2"},
    ],
)
def test_the_shapes_of_other_systems_say_the_same(row: dict[str, Any]) -> None:
    assert conversation_contract(ENVIRONMENTS).problems(row) == []
    found = conversation_row(row, "exact_match")
    assert (found["prompt"], found["completion"]) == ([ASK], [TELL])
    assert (found["env_class"], found["reward_spec"]) == ("exact_match", {"ground_truth": "2"})
    assert "env_class" not in conversation_row(row)


@pytest.mark.parametrize(
    ("row", "field", "reason"),
    [
        ({}, "prompt", "missing"),
        ({"prompt": "a"}, "completion", "no answer to learn"),
        ({"prompt": "a", "completion": " "}, "completion[0].content", "empty answer"),
        ({"messages": "hello"}, "messages", "no answer to learn"),
        ({"messages": [TELL]}, "messages", "no user message"),
        ({"messages": [ASK, TELL, ASK]}, "messages[2]", "not answered"),
        ({"messages": [ASK, TELL, TELL]}, "messages[2].role", "two answers in a row"),
        ({"messages": [ASK, {"role": "bot", "content": "2"}]}, "messages[1].role", "unknown role"),
        (
            {"messages": [ASK, {"role": "assistant", "content": 2}]},
            "messages[1].content",
            "content",
        ),
        ({"conversations": [{"from": "me", "value": "a"}]}, "conversations[0].from", "unknown"),
        ({"messages": [ASK, TELL], "env_class": "nowhere"}, "env_class", "unknown environment"),
    ],
)
def test_a_bad_row_is_refused_with_its_field(row: dict[str, Any], field: str, reason: str) -> None:
    problems = conversation_contract(ENVIRONMENTS).problems(row)
    assert [(one.field, one.reason) for one in problems if reason in one.reason], problems
    assert problems[0].field in (field, "completion"), problems


def test_a_row_with_an_environment_may_be_held_out_without_an_answer() -> None:
    row = {"prompt": "1+1?", "env_class": "exact_match", "reward_spec": {"ground_truth": "2"}}
    assert conversation_contract(ENVIRONMENTS).problems(row) == []
    assert "completion" not in conversation_row(row)
