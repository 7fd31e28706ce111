"""Rows of verl, TRL, OpenAI, ShareGPT, Alpaca and MMPR as rows of this project.

A conversation that ends with the assistant's message is asked without it; that message is then the
ground truth, unless the row has one of its own. Rows with a better and a worse answer become
preference rows. Columns that are not read stay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from rl_core.errors import DataError
from schemas.rows.conversation_rows import SPEAKERS
from schemas.rows.messages import called_tools, plain_messages
from schemas.rows.preference_shapes import ASKED, pair_of
from schemas.rows.problems import Problem, as_list, get
from schemas.rows.prompt_rows import ROLES

Row = dict[str, Any]
Messages = list[Row]


class RowFormat(StrEnum):
    """Whose rows a file holds."""

    TRL = "trl"
    """`prompt` as a text or messages, with `completion`, or `chosen` and `rejected`."""
    OPENAI = "openai"
    """`messages` with role and content."""
    VERL = "verl"
    """`prompt`, `reward_model.ground_truth`, `extra_info`; structs, or the same as JSON texts."""
    SHAREGPT = "sharegpt"
    """`conversations` with from and value."""
    ALPACA = "alpaca"
    """`instruction`, `input`, `output`."""
    MMPR = "mmpr"
    """`question`, `chosen`, `rejected`; or MMPR-Tiny's `images`, `prompt`, `reward_model`."""


_TRUTHS = ("ground_truth", "solution", "answer")
"""Columns in which rows of TRL keep what a reply is compared with."""


def own_row(row: Mapping[str, object], kind: RowFormat, place: str) -> Row:
    """A row of another system as a prompt row or a preference row, as far as it says.

    Raises: DataError naming `place`, field and value.
    """
    return _READERS[kind](dict(row), place)


def _verl(row: Row, place: str) -> Row:
    for name in ("prompt", "reward_model", "extra_info"):
        if isinstance(row.get(name), str):
            row[name] = _json(row[name], f"{place} field {name}", plain=name == "prompt")
    if (spec := row.pop("reward_model", None)) is not None:
        row["reward_spec"] = spec
    row["prompt"] = _messages(row.get("prompt"), f"{place} field prompt")
    return row


def _trl(row: Row, place: str) -> Row:
    if "chosen" in row and "rejected" in row:
        return _pair(row, place)
    if "messages" in row:
        return _openai(row, place)
    row["prompt"] = _messages(row.get("prompt"), f"{place} field prompt")
    if (completion := row.pop("completion", None)) is not None:
        return _with_truth(row, _spoken(completion, f"{place} field completion"))
    return _with_truth(row, None)


def _pair(row: Row, place: str) -> Row:
    """Two answers, with the prompt in a column of its own or at the head of both."""
    said = pair_of(row)
    for value in said.values():
        if isinstance(value, Problem):
            raise DataError(value.at(place))
    kept = {key: value for key, value in row.items() if key not in (*ASKED, "system")}
    return kept | said


def _openai(row: Row, place: str) -> Row:
    messages = _messages(row.pop("messages", None), f"{place} field messages")
    return _asked(row, messages)


def _sharegpt(row: Row, place: str) -> Row:
    field = f"{place} field conversations"
    turns = as_list(row.pop("conversations", None))
    if not turns or not all(isinstance(turn, Mapping) for turn in turns):
        raise DataError(f"{field}: expected a list of from and value, got {turns!r}")
    messages = []
    for index, turn in enumerate(turns):
        speaker = turn.get("from")
        if speaker not in SPEAKERS:
            raise DataError(
                f"{field}[{index}].from: unknown speaker {speaker!r}; expected "
                f"{', '.join(SPEAKERS)}"
            )
        messages.append({"role": SPEAKERS[speaker], "content": turn.get("value")})
    if isinstance(system := row.get("system"), str) and system.strip():
        messages.insert(0, {"role": "system", "content": system})
    return _asked(row, _messages(messages, field))


def _alpaca(row: Row, place: str) -> Row:
    question = row.pop("instruction", None)
    if not isinstance(question, str) or not question.strip():
        raise DataError(f"{place} field instruction: expected a text, got {question!r}")
    if more := row.pop("input", None):
        question = f"{question}\n\n{more}"
    row["prompt"] = [{"role": "user", "content": question}]
    return _with_truth(row, row.pop("output", None))


def _mmpr(row: Row, place: str) -> Row:
    """Preference rows are ours already."""
    if "question" in row:
        return row
    return _verl(row, place)


def _asked(row: Row, messages: Messages) -> Row:
    """The conversation up to the assistant's last message, which is what it should have said."""
    if len(messages) > 1 and messages[-1]["role"] == "assistant":
        answer = messages.pop()["content"]
    else:
        answer = None
    row["prompt"] = messages
    return _with_truth(row, answer)


def _with_truth(row: Row, answer: object) -> Row:
    truth = get(row, *_TRUTHS)
    truth = answer if truth is None else truth
    if truth is not None and get(row, "reward_spec", "reward_model") is None:
        row["reward_spec"] = {"method": "rule", "ground_truth": truth}
    return row


def _messages(value: object, where: str) -> Messages:
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    items = as_list(value)
    if not items or not all(isinstance(item, Mapping) for item in items):
        raise DataError(
            f"{where}: expected a text, or a list of messages with role and content, got {value!r}"
        )
    plain = plain_messages(items)
    return [_message(item, f"{where}[{index}]", plain) for index, item in enumerate(plain)]


def _message(
    item: Mapping[str, object], where: str, messages: Sequence[Mapping[str, object]]
) -> dict[str, object]:
    role = item.get("role")
    if any(map(called_tools, messages)) and isinstance(item.get("content"), str):
        return dict(item)  # for the contract and the chat template to judge
    if role not in ROLES:
        raise DataError(
            f"{where}.role: {role!r} has no place in a prompt row; expected {', '.join(ROLES)}"
        )
    return {"role": str(role), "content": _content(item.get("content"), f"{where}.content")}


def _content(value: object, where: str) -> str:
    if isinstance(value, str):
        return value
    parts = as_list(value) or []
    texts = []
    for part in parts:
        if isinstance(part, Mapping) and part.get("type") == "text":
            texts.append(part.get("text"))
    if not texts or len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{where}: expected a text or parts of type text, got {value!r}")
    return "".join(str(text) for text in texts)


def _spoken(value: object, where: str) -> str:
    """An answer as TRL writes it: a text, or a conversation of one message."""
    if isinstance(value, str):
        return value
    messages = _messages(value, where)
    if len(messages) != 1 or messages[0]["role"] != "assistant":
        raise DataError(f"{where}: expected one message of the assistant, got {len(messages)}")
    return messages[0]["content"]


def _json(text: str, where: str, *, plain: bool) -> object:
    """Read a JSON text. Args: plain: other texts are left as they are."""
    try:
        value = json.loads(text)
    except ValueError as error:
        if plain:
            return text
        raise DataError(f"{where}: expected an object, or one as JSON, got {text!r}") from error
    if plain and not isinstance(value, list):
        return text
    return value


_READERS: dict[RowFormat, Callable[[Row, str], Row]] = {
    RowFormat.TRL: _trl,
    RowFormat.OPENAI: _openai,
    RowFormat.VERL: _verl,
    RowFormat.SHAREGPT: _sharegpt,
    RowFormat.ALPACA: _alpaca,
    RowFormat.MMPR: _mmpr,
}
