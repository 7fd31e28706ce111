"""Response rows read as prompt rows: what training makes of what `prep -c text` publishes."""

from typing import Any

import pytest

from rl_core.data.read.readers import normalise
from schemas.rows.ground_truth import ANY_GROUND_TRUTH
from schemas.rows.prompt_rows import prompt_contract

USER = {"role": "user", "content": "2 + 2?"}


def row(**params: Any) -> dict[str, Any]:
    return {"responses_create_params": {"input": [USER], **params}, "expected_answer": "4"}


def problems(given: dict[str, Any]) -> list[str]:
    contract = prompt_contract({"gsm8k": ANY_GROUND_TRUTH}, "gsm8k")
    return [f"{one.field}: {one.reason}" for one in contract.problems(normalise(given))]


def test_a_response_row_is_a_prompt_row_with_its_answer_as_ground_truth() -> None:
    made = normalise(row(temperature=0.5))
    assert made["prompt"] == [USER]
    assert made["reward_spec"] == {"method": "rule", "ground_truth": "4"}
    assert made["responses_create_params"] == {"temperature": 0.5}
    assert problems(row()) == []


def test_instructions_and_developer_are_the_system_message() -> None:
    system = {"role": "system", "content": "Be short."}
    assert normalise(row(instructions="Be short."))["prompt"] == [system, USER]
    developer = row(input=[{**system, "role": "developer"}, USER])
    assert normalise(developer)["prompt"] == [system, USER]


def test_texts_of_parts_are_joined_and_an_input_may_be_a_text() -> None:
    parts = [{"type": "input_text", "text": "2 + "}, {"type": "input_text", "text": "2?"}]
    assert normalise(row(input=[{"role": "user", "content": parts}]))["prompt"] == [USER]
    assert normalise(row(input="2 + 2?"))["prompt"] == [USER]


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"tools": [{"name": "search"}]}, "responses_create_params.tools: tools of a row"),
        ({"input": [USER, {"type": "function_call", "name": "f"}]}, "prompt[1].role: unknown role"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "prompt[0].content: content is not a string",
        ),
        ({"input": None}, "prompt: missing"),
        ({"input": 7}, "prompt: not a list of messages"),
    ],
)
def test_what_a_prompt_row_cannot_hold_is_refused(params: dict[str, Any], problem: str) -> None:
    assert any(one.startswith(problem) for one in problems(row(**params)))


def test_params_that_are_no_object_are_refused() -> None:
    assert "prompt: missing" in problems({"responses_create_params": "2 + 2?"})
