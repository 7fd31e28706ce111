"""Pairs of answers as other systems write them, and what each says: a question and two answers.

| row | written by |
|---|---|
| `question`, `chosen`, `rejected` (or `..._response`), `image` | MMPR |
| `prompt` or `instruction`, `chosen`, `rejected` | TRL, OpenRLHF, Argilla |
| the same as lists of messages; without `prompt`, it is what both begin with | TRL, UltraFeedback |
| `input.messages`, `preferred_output`, `non_preferred_output` | OpenAI |
| `context`, two `completions` with a `rank` each | NeMo RL |
| `instruction`, `completions` with an `overall_score` each: best and worst | UltraFeedback |

A text in `system` stands before the question.
"""

import math
from collections.abc import Mapping, Sequence, Set
from typing import Any

from schemas.rows.messages import messages_of_text, plain_messages
from schemas.rows.problems import Problem, as_list, get

Messages = list[Any]
"""Items that a row has as messages; a contract refuses one that is no message."""

ASKED = ("question", "prompt", "instruction")
CHOSEN, REJECTED = ("chosen", "chosen_response"), ("rejected", "rejected_response")
_ANSWER = "a text, or a list with one message of the assistant"
_QUESTION = "a text, or a list of messages that ends with the user's"


def is_pair(keys: Set[object]) -> bool:
    """Return True if a row with these keys holds answers to compare."""
    named = {*CHOSEN, *REJECTED, "preferred_output", "non_preferred_output"}
    return bool(named & keys) or any(
        needed <= keys
        for needed in (
            {"context", "completions"},
            {"instruction", "completions"},
            {"completion", "label"},
        )
    )


def pair_of(row: Mapping[str, object]) -> dict[str, object]:
    """Return `question`, `chosen` and `rejected` of a row.

    The question is a text, or a list of messages where it is more than one user's. In place of a
    value that cannot be told there is the Problem; None where the row has none.
    """
    given = _given(row)
    if isinstance(given, Problem):
        return dict.fromkeys(("question", "chosen", "rejected"), given)
    asked, chosen, rejected = given
    field = next((name for name in ASKED if get(row, name) is not None), "question")
    question = _question(asked, field)
    if isinstance(question, Problem):
        return dict.fromkeys(("question", "chosen", "rejected"), question)
    sides = {"chosen": _spoken(chosen), "rejected": _spoken(rejected)}
    if all(map(_are_messages, sides.values())):
        split = _without_prompt(question, sides["chosen"], sides["rejected"])
        if isinstance(split, Problem):
            return {"question": question or split, "chosen": split, "rejected": split}
        question, sides["chosen"], sides["rejected"] = split
    answers = {name: _answer(name, said) for name, said in sides.items()}
    return {"question": _with_system(question, get(row, "system")), **answers}


def _given(row: Mapping[str, object]) -> tuple[object, object, object] | Problem:
    """Return what a row asks and its two answers, as written."""
    if "preferred_output" in row or "non_preferred_output" in row:
        asked = get(row, "input")
        messages = get(asked, "messages") if isinstance(asked, Mapping) else asked
        return messages, get(row, "preferred_output"), get(row, "non_preferred_output")
    if get(row, *CHOSEN, *REJECTED) is None and (ranked := as_list(get(row, "completions"))):
        return _ranked(row, ranked)
    return get(row, *ASKED), get(row, *CHOSEN), get(row, *REJECTED)


def _ranked(row: Mapping[str, object], ranked: Messages) -> tuple[object, object, object] | Problem:
    if not all(isinstance(one, Mapping) for one in ranked):
        return Problem("completions", "not objects", ranked, "objects with rank and completion")
    ranks = [get(one, "rank") for one in ranked]
    if all(map(_is_number, ranks)):
        if len(ranked) != 2 or ranks[0] == ranks[1]:
            return Problem("completions", "no pair", ranks, "two completions of different rank")
        better, worse = sorted(ranked, key=lambda one: one["rank"])
        return get(row, "context", *ASKED), get(better, "completion"), get(worse, "completion")
    scores = [get(one, "overall_score") for one in ranked]
    if all(map(_is_number, scores)):
        best, worst = max(scores), min(scores)
        if scores.count(best) != 1 or scores.count(worst) != 1:
            expected = "one best and one worst overall_score"
            return Problem("completions", "no pair", scores, expected)
        sides = (ranked[scores.index(best)], ranked[scores.index(worst)])
        return get(row, *ASKED), *(get(one, "response", "completion") for one in sides)
    return Problem("completions", "no order", ranks, "a rank or an overall_score in each")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _question(asked: object, field: str) -> Messages | Problem:
    """Return a text or messages as messages; [] where there is none."""
    if asked is None:
        return []
    read = messages_of_text(asked) if isinstance(asked, str) else as_list(asked)
    if not isinstance(read, list) or not all(isinstance(one, Mapping) for one in read):
        return Problem(field, "not a text", asked, _QUESTION)
    return plain_messages(read)


def _spoken(said: object) -> Any:
    """Return an answer's messages, or the text or other value that it is."""
    items = [said] if isinstance(said, Mapping) else as_list(said)
    if _are_messages(items):
        return plain_messages(items or [])
    return said if items is None else items


def _are_messages(said: object) -> bool:
    return isinstance(said, list) and bool(said) and all(isinstance(one, Mapping) for one in said)


def _without_prompt(
    question: Messages, chosen: Messages, rejected: Messages
) -> tuple[Messages, Messages, Messages] | Problem:
    """Return the conversation that two lists of messages answer, and what each adds to it."""
    same = 0
    while same < min(len(chosen), len(rejected)) - 1 and chosen[same] == rejected[same]:
        same += 1
    if len(chosen) > 1 and any(
        one.get("role") != "assistant" for one in (chosen[same], rejected[same])
    ):
        expected = "two answers to the same conversation"
        return Problem("rejected", "answers another prompt than chosen", rejected, expected)
    head = chosen[:same]
    if same and question and question != head and not _ends_alike(head, question):
        expected = "the conversation that chosen and rejected begin with, or none"
        return Problem("rejected", "answers another question", question, expected)
    return head or question, chosen[same:], rejected[same:]


def _ends_alike(head: Messages, question: Messages) -> bool:
    """Return True if a conversation asks what a row's prompt asks, which may be a part of it."""
    users = [one.get("content") for one in head if one.get("role") == "user"]
    asked = [one.get("content") for one in question if one.get("role") == "user"]
    return len(asked) == 1 and asked[0] in users


def _answer(field: str, said: object) -> object:
    if not isinstance(said, list):
        return said
    one = said[0] if len(said) == 1 and isinstance(said[0], Mapping) else {}
    if one.get("role") != "assistant" or one.get("tool_calls"):
        roles = [one.get("role") if isinstance(one, Mapping) else one for one in said]
        return Problem(field, "not one answer", roles, _ANSWER)
    return one.get("content")


def _with_system(question: Messages, system: object) -> object:
    """Return the question with its system message; a single user message as its text."""
    if system is not None and not isinstance(system, str):
        return Problem("system", "not a text", system, "a text, which stands before the question")
    if isinstance(system, str) and system.strip() and question:
        if question[0].get("role") != "system":
            question = [{"role": "system", "content": system}, *question]
        elif question[0].get("content") != system:
            return Problem("system", "two system messages", system, "one, in a column or a message")
    if len(question) == 1 and question[0].get("role") == "user":
        text = question[0].get("content")
        if isinstance(text, str):
            return text
        return question
    return question or None


def conversation_problems(messages: Sequence[Mapping[str, object]]) -> list[Problem]:
    """Return every problem of a question that is a conversation."""
    problems = []
    for index, one in enumerate(messages):
        if one.get("role") not in ("system", "user", "assistant", "tool") or not (
            isinstance(one.get("content"), str) or one.get("tool_calls")
        ):
            problems.append(
                Problem(
                    f"prompt[{index}]",
                    "not a text message",
                    one,
                    "a role and a text as its content",
                )
            )
    if messages[-1].get("role") not in ("user", "tool"):
        role = messages[-1].get("role")
        problems.append(Problem("prompt", "nothing to answer", role, _QUESTION))
    return problems
