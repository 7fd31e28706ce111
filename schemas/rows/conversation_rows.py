"""Conversation rows: the answers that a model is to learn, and what they answer.

| row | written by | trained |
|---|---|---|
| `messages` with role and content | OpenAI, TRL | the assistant's turns |
| `conversations` with from and value | ShareGPT | the assistant's turns |
| `prompt` and `completion` (or `response`), texts or messages | TRL | the completion's turns |
| `instruction`, `input`, `output` | Alpaca | the output |

A text in `system` stands before the conversation. `images` are those of the marks `<image>` in the
user's messages, or of content parts of type `image`. A row may name an environment (`env_class`),
which then grades replies in evaluations; its `reward_spec` is the last answer unless the row has
one. Only such a row may be without an answer, and only to be held out.
"""

from collections.abc import Mapping
from typing import Any

from schemas.rows.contract import FieldRule, RowContract, SchemaName
from schemas.rows.ground_truth import (
    AllowedEnvClasses,
    accepted_kind_problems,
    reward_spec_problems,
)
from schemas.rows.media_checks import embedded_image_problems
from schemas.rows.messages import called_tools, messages_of_text, plain_messages
from schemas.rows.problems import Problem, as_list, get
from schemas.rows.prompt_rows import (
    OPTIONAL_TYPES,
    env_class_problems,
    max_turns_of,
    max_turns_problems,
    optional_problems,
    reward_spec_of,
)

Messages = list[Any]

SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "system": "system",
}
"""Roles of the speakers in ShareGPT's `from`."""
IMAGE_MARK = "<image>"
"""Place of a picture in a user's text."""
COMPLETIONS = ("completion", "response")
SHAPES = ("messages", "conversations", *COMPLETIONS, "instruction", "input", "output", "system")
"""Columns in which a row says its conversation, besides `prompt`."""
_ROLES = ("system", "user", "assistant", "tool")
_EXPECTED = (
    "messages, conversations, prompt and completion, or instruction and output (or env_class, to "
    "be held out and played)"
)
_MESSAGES = "a text, or a list of messages with role and content"


def conversation_contract(
    allowed_env_classes: AllowedEnvClasses, default_env_class: str | None = None
) -> RowContract:
    """Return the contract of conversation rows.

    Args: default_env_class: environment of rows that do not name one; None leaves them without.
    """

    def extract(row: Mapping[str, object]) -> dict[str, object]:
        found, env_class = _said(row), _env_class(row, default_env_class)
        problems = found if isinstance(found, list) else _problems(*found)
        if not problems and isinstance(found, tuple) and not found[2] and env_class is None:
            problems = [Problem("completion", "no answer to learn", None, _EXPECTED)]
        played = {} if problems else _played(conversation_row(row, default_env_class))
        return {
            "conversation": problems,
            "env_class": env_class,
            "reward_spec": played.get("reward_spec"),
            "max_turns": max_turns_of(row),
            "images": get(row, "images"),
            **{field: get(row, field) for field in OPTIONAL_TYPES},
        }

    def optional(field: str) -> FieldRule:
        return lambda value: optional_problems(field, value)

    return RowContract(
        SchemaName.CONVERSATION,
        extract,
        {
            "conversation": lambda problems: list(as_list(problems) or []),
            "env_class": lambda value: (
                [] if value is None else env_class_problems(value, allowed_env_classes)
            ),
            "reward_spec": lambda value: [] if value is None else reward_spec_problems(value),
            "max_turns": max_turns_problems,
            "images": embedded_image_problems,
            **{field: optional(field) for field in OPTIONAL_TYPES},
        },
        lambda row: (
            []
            if row["env_class"] is None or row["conversation"]
            else [
                *(reward_spec_problems(None) if row["reward_spec"] is None else []),
                *accepted_kind_problems(row["env_class"], row["reward_spec"], allowed_env_classes),
            ]
        ),
    )


def conversation_row(
    row: Mapping[str, object], default_env_class: str | None = None
) -> dict[str, Any]:
    """Return a good row in the form that training reads, whatever system wrote it: `prompt` and
    `completion` as messages, `env_class` and `reward_spec` if it is played, and its other columns.

    Without an answer, the row has no `completion`. Raises: ValueError when the row is not good.
    """
    found = _said(row)
    if isinstance(found, list):
        raise ValueError(found[0].at("row"))
    _, prompt, completion = found
    made = {key: value for key, value in row.items() if key not in SHAPES}
    made["prompt"] = prompt
    if completion:
        made["completion"] = completion
    if (env_class := _env_class(row, default_env_class)) is not None:
        made["env_class"] = env_class
        if reward_spec_of(row) is None and completion:
            made["reward_spec"] = {"ground_truth": completion[-1].get("content")}
    return made


def is_conversation(keys: set[object] | Any) -> bool:
    """Return True if a row with these keys says a conversation with its answers."""
    return bool(
        {"messages", "conversations"} & keys
        or {"prompt", "completion"} <= keys
        or {"instruction", "output"} <= keys
    )


def _env_class(row: Mapping[str, object], default: str | None) -> object:
    named = get(row, "env_class")
    return default if named is None else named


def _played(row: Mapping[str, object]) -> dict[str, object]:
    return {"reward_spec": reward_spec_of(row) if "env_class" in row else None}


def _said(row: Mapping[str, object]) -> tuple[str, Messages, Messages] | list[Problem]:
    """Return the field of a row's conversation, what is read of it, and the answers with what lies
    between them; or why it has none."""
    field = next((name for name in ("messages", "conversations") if _has(row, name)), None)
    if field is not None:
        read = _turns(row, field) if field == "conversations" else _messages(row, field)
        if isinstance(read, Problem):
            return [read]
        read = _with_system(row, read)
        first = next((at for at, one in enumerate(read) if _role(one) == "assistant"), len(read))
        return field, read[:first], read[first:]
    if _has(row, "instruction"):
        asked, output = get(row, "instruction"), get(row, "output")
        if not isinstance(asked, str):
            return [Problem("instruction", "not a text", asked, "a text")]
        asked = f"{asked}\n\n{more}" if (more := get(row, "input")) else asked
        prompt = _with_system(row, [{"role": "user", "content": asked}])
        return "output", prompt, [] if output is None else [_answer(output)]
    prompt = _messages(row, "prompt")
    if isinstance(prompt, Problem):
        return [prompt]
    prompt, name = _with_system(row, prompt), next((n for n in COMPLETIONS if _has(row, n)), None)
    if name is None:
        return "completion", prompt, []
    said = get(row, name)
    if isinstance(said, str):
        return name, prompt, [_answer(said)]
    completion = _messages(row, name)
    if isinstance(completion, Problem):
        return [completion]
    return (name, prompt, completion)


def _has(row: Mapping[str, object], name: str) -> bool:
    return get(row, name) is not None


def _answer(content: object) -> dict[str, object]:
    return {"role": "assistant", "content": content}


def _messages(row: Mapping[str, object], field: str) -> Messages | Problem:
    value = get(row, field)
    if value is None:
        return Problem(field, "missing", None, _EXPECTED)
    items = as_list(messages_of_text(value) if isinstance(value, str) else value)
    if not items or not all(isinstance(one, Mapping) for one in items):
        return Problem(field, "not a list of messages", value, _MESSAGES)
    return plain_messages([_with_marks(one) for one in items])


def _with_marks(message: Mapping[str, object]) -> Mapping[str, object]:
    """Return a message with a mark in the place of each part of type `image`."""
    parts = as_list(message.get("content"))
    if not parts:
        return message
    marked = []
    for part in parts:
        if isinstance(part, Mapping) and part.get("type") == "image":
            marked.append({"type": "text", "text": IMAGE_MARK})
        else:
            marked.append(part)
    return {**message, "content": marked}


def _turns(row: Mapping[str, object], field: str) -> Messages | Problem:
    turns = as_list(get(row, field))
    if not turns or not all(isinstance(turn, Mapping) for turn in turns):
        return Problem(field, "not a list of turns", turns, "a list of from and value")
    for at, turn in enumerate(turns):
        if turn.get("from") not in SPEAKERS:
            expected = ", ".join(SPEAKERS)
            return Problem(f"{field}[{at}].from", "unknown speaker", turn.get("from"), expected)
    return [{"role": SPEAKERS[one["from"]], "content": one.get("value")} for one in turns]


def _with_system(row: Mapping[str, object], messages: Messages) -> Messages:
    system = get(row, "system")
    if not isinstance(system, str) or not system.strip() or _role(messages[0]) == "system":
        return messages
    return [{"role": "system", "content": system}, *messages]


def _role(message: Mapping[str, object]) -> object:
    return message.get("role")


def _problems(field: str, prompt: Messages, completion: Messages) -> list[Problem]:
    """Return every problem of a conversation's messages."""
    whole = field in ("messages", "conversations")
    asked = field if whole else "prompt"
    places = [f"{asked}[{at}]" for at in range(len(prompt))]
    start = len(prompt) if whole else 0
    places += [f"{field}[{start + at}]" for at in range(len(completion))]
    messages = [*prompt, *completion]
    problems = []
    for at, (place, one) in enumerate(zip(places, messages, strict=True)):
        problems.extend(_message_problems(place, one, messages[:at]))
    if not any(_role(one) == "user" for one in prompt):
        expected = "a message with role 'user' before the first answer"
        problems.append(Problem(asked, "no user message", None, expected))
    if completion and _role(completion[0]) != "assistant":
        expected = "the assistant's message first"
        problems.append(Problem(places[len(prompt)], "no answer", _role(completion[0]), expected))
    if completion and _role(completion[-1]) != "assistant":
        expected = "the assistant's message last; leave out what nobody answers"
        problems.append(Problem(places[-1], "not answered", _role(completion[-1]), expected))
    return problems


def _message_problems(place: str, message: Mapping[str, object], before: Messages) -> list[Problem]:
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES or (role == "tool" and not any(map(called_tools, before))):
        expected = "system, user or assistant; tool after the assistant's tool_calls"
        return [Problem(f"{place}.role", "unknown role", role, expected)]
    if role == "assistant" and before and _role(before[-1]) == "assistant":
        expected = "a message of somebody else between two of the assistant"
        return [Problem(f"{place}.role", "two answers in a row", role, expected)]
    if not isinstance(content, str):
        return [Problem(f"{place}.content", "content is not a string", content, "a string")]
    if role == "assistant" and not content.strip() and not called_tools(message):
        return [Problem(f"{place}.content", "empty answer", content, "a text")]
    return []
