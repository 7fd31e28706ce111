"""Pairs of other systems say what they say here, and nothing is guessed."""

from pathlib import Path
from typing import Any

import pytest

from schemas.rows.preference_rows import preference_contract, preference_pair

SYSTEM = {"role": "system", "content": "Be brief."}
USER, AGAIN = ({"role": "user", "content": text} for text in ("q", "and?"))


def said(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


def part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def ranked(*ranks: int) -> list[dict[str, Any]]:
    return [
        {"rank": rank, "completion": [said("a" if rank == 0 else f"b{rank}")]} for rank in ranks
    ]


SINGLE: dict[str, dict[str, Any]] = {
    "mmpr": {"question": "q", "chosen_response": "a", "rejected_response": "b1"},
    "trl": {"prompt": "q", "chosen": "a", "rejected": "b1"},
    "trl conversational": {"prompt": [USER], "chosen": [said("a")], "rejected": [said("b1")]},
    "trl implicit": {"chosen": [USER, said("a")], "rejected": [USER, said("b1")]},
    "ultrafeedback binarized": {
        **{"prompt": "q", "prompt_id": "x", "score_chosen": 8.0, "messages": [USER, said("a")]},
        **{"chosen": [USER, said("a")], "rejected": [USER, said("b1")]},
    },
    "ultrafeedback": {
        "instruction": "q",
        "completions": [
            {"response": "c", "overall_score": 3},
            {"response": "a", "overall_score": 8.5},
            {"response": "b1", "overall_score": 2.0},
        ],
    },
    "argilla": {"instruction": "q", "chosen_response": "a", "rejected_response": "b1"},
    "openai": {
        "input": {"messages": [USER], "tools": [], "parallel_tool_calls": True},
        **{"preferred_output": [said("a")], "non_preferred_output": [said("b1")]},
    },
    "nemo rl": {"context": [USER], "completions": ranked(1, 0)},
    "parts": {
        "prompt": [{"role": "user", "content": part("q")}],
        "chosen": [{"role": "assistant", "content": part("a")}],
        "rejected": "b1",
    },
    "messages as a text": {
        **{"prompt": '[{"role": "user", "content": "q"}]', "chosen": "a", "rejected": "b1"}
    },
}
TALK = [SYSTEM, USER, said("x"), AGAIN]
SEVERAL: dict[str, dict[str, Any]] = {
    "trl": {"prompt": TALK, "chosen": [said("a")], "rejected": [said("b1")]},
    "implicit": {"chosen": [*TALK, said("a")], "rejected": [*TALK, said("b1")]},
    "openai": {
        "input": {"messages": [{**SYSTEM, "role": "developer"}, *TALK[1:]]},
        **{"preferred_output": [said("a")], "non_preferred_output": [said("b1")]},
    },
    "nemo rl": {"context": TALK, "completions": ranked(0, 1)},
    "system column": {
        **{"system": "Be brief.", "prompt": TALK[1:], "chosen": "a", "rejected": "b1"}
    },
}


def pair(row: dict[str, Any]):
    return preference_pair(row, folder=Path(), place="f:1", needs_image=False)


@pytest.mark.parametrize("row", SINGLE.values(), ids=SINGLE)
def test_a_question_and_two_answers_are_the_same_pair_whoever_wrote_them(
    row: dict[str, Any],
) -> None:
    found = pair(row)
    assert (found.question, found.chosen, found.rejected) == ("q", "a", "b1")
    assert found.prompt == [USER]


@pytest.mark.parametrize("row", SEVERAL.values(), ids=SEVERAL)
def test_a_system_message_and_earlier_turns_are_part_of_what_is_asked(row: dict[str, Any]) -> None:
    found = pair(row)
    assert (found.prompt, found.chosen, found.rejected) == (TALK, "a", "b1")


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"chosen": "Human: q Assistant: a", "rejected": "x"}, "question", "missing"),
    (
        {"prompt": "z", "chosen": [USER, said("a")], "rejected": [USER, said("b")]},
        "rejected",
        "answers another question",
    ),
    (
        {"chosen": [USER, said("a")], "rejected": [AGAIN, said("b")]},
        "rejected",
        "answers another prompt than chosen",
    ),
    (
        {"prompt": "q", "chosen": [said("a"), USER, said("c")], "rejected": [said("b")]},
        "chosen",
        "not one answer",
    ),
    (
        {
            "prompt": [{"role": "user", "content": [{"type": "image"}]}],
            "chosen": "a",
            "rejected": "b",
        },
        "prompt[0]",
        "not a text message",
    ),
    ({"prompt": [USER, said("x")], "chosen": "a", "rejected": "b"}, "prompt", "nothing to answer"),
    ({"context": [USER], "completions": ranked(0, 1, 2)}, "completions", "no pair"),
    ({"context": [USER], "completions": ranked(1, 1)}, "completions", "no pair"),
    ({"prompt": "[{'role': 'user'}]", "chosen": "a", "rejected": "b"}, "prompt", "not a text"),
    (
        {"system": "x", "prompt": [SYSTEM, USER], "chosen": "a", "rejected": "b"},
        "system",
        "two system messages",
    ),
    (
        {"chosen": [USER, said("a")], "rejected": [USER, said("a")]},
        "rejected",
        "chosen and rejected are equal",
    ),
]


@pytest.mark.parametrize(("row", "field", "reason"), REFUSED)
def test_what_is_no_pair_is_refused_once(row: dict[str, Any], field: str, reason: str) -> None:
    found = preference_contract(needs_image=False).problems(row)
    assert [(problem.field, problem.reason) for problem in found] == [(field, reason)]
