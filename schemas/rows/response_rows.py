"""Text-RL response rows: `responses_create_params` with its `input`; all other columns are kept
unchanged.

Where prompts are trained on, such a row is read as a prompt row.

`input` is a list of chat messages (roles system, developer, user, assistant; content a text or a
list of parts) or one text; items other than messages (function calls and their outputs) are kept
and not validated.
"""

from collections.abc import Mapping
from typing import Any

from schemas.rows.contract import RowContract, SchemaName
from schemas.rows.messages import plain_messages
from schemas.rows.problems import Problem, as_list, get

ROLES = ("system", "developer", "user", "assistant")
PARAMS = "responses_create_params"
_MESSAGES = "a text, or a list of messages with role and content"


def response_contract() -> RowContract:
    """Return the contract of response rows."""
    return RowContract(
        SchemaName.RESPONSE, lambda row: {PARAMS: get(row, PARAMS)}, {PARAMS: params_problems}
    )


def params_problems(value: object) -> list[Problem]:
    """Return every problem of a row's `responses_create_params`."""
    if value is None:
        return [Problem(PARAMS, "missing", value, f"an object with input ({_MESSAGES})")]
    if not isinstance(value, Mapping):
        return [Problem(PARAMS, "not an object", value, f"an object with input ({_MESSAGES})")]
    given = get(value, "input")
    if given is None:
        return [Problem(f"{PARAMS}.input", "missing", value, _MESSAGES)]
    if isinstance(given, str):
        if given.strip():
            return []
        return [Problem(f"{PARAMS}.input", "empty", given, _MESSAGES)]
    items = as_list(given)
    if items is None or not all(isinstance(item, Mapping) for item in items):
        return [Problem(f"{PARAMS}.input", "not a list of messages", given, _MESSAGES)]
    problems = []
    for i, item in enumerate(items):
        problems.extend(_item_problems(i, item))
    if not any(item.get("role") == "user" for item in items):
        problems.append(
            Problem(
                f"{PARAMS}.input", "no user message", given, "at least one message with role 'user'"
            )
        )
    return problems


def input_messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages of a valid row; an input that is a text becomes one user message."""
    given = row[PARAMS]["input"]
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return as_list(given) or []


def as_prompt_row(row: Mapping[str, object]) -> dict[str, Any]:
    """Return a response row as a prompt row, as far as it can be one.

    `instructions` and `input` become the prompt, texts of content parts are joined,
    `expected_answer` is the ground truth of a row without a `reward_spec`. What a prompt row cannot
    hold (a picture, a call of a function) stays as it is, for the contract of prompt rows to
    refuse.
    """
    params = row[PARAMS]
    if not isinstance(params, Mapping):
        return {"prompt": None, **row}
    given = get(params, "input")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else as_list(given)
    messages: object = given if items is None else [_prompt_message(item) for item in items]
    instructions = get(params, "instructions")
    if isinstance(instructions, str) and isinstance(messages, list):
        messages = [{"role": "system", "content": instructions}, *messages]
    others = {}
    for key, value in params.items():
        if key not in ("input", "instructions"):
            others[key] = value
    made: dict[str, Any] = {
        "prompt": messages,
        **{key: value for key, value in row.items() if key != PARAMS},
    }
    answer = get(row, "expected_answer")
    if get(row, "reward_spec", "reward_model") is None and answer is not None:
        made["reward_spec"] = {"method": "rule", "ground_truth": answer}
    if others:
        return {**made, PARAMS: others}
    return made


def tools_problems(value: object) -> list[Problem]:
    """Report tools that a row declares: in training nobody would offer or run them."""
    tools = as_list(get(value, "tools")) if isinstance(value, Mapping) else None
    if not tools:
        return []
    expected = "no tools, since the environments of prompt rows bring their own; drop such rows"
    return [Problem(f"{PARAMS}.tools", "tools of a row are not offered", tools, expected)]


def _prompt_message(item: object) -> object:
    """Return a message of `input` with role and text; any other item as it is."""
    if not isinstance(item, Mapping) or "role" not in item:
        return item
    plain = plain_messages([item])[0]
    return {"role": plain["role"], "content": plain.get("content")}


def _item_problems(index: int, item: Mapping[str, object]) -> list[Problem]:
    where = f"{PARAMS}.input[{index}]"
    if "role" not in item and isinstance(item.get("type"), str):
        return []
    problems = []
    if item.get("role") not in ROLES:
        problems.append(
            Problem(f"{where}.role", "unknown role", item.get("role"), ", ".join(ROLES))
        )
    content = item.get("content")
    parts = as_list(content)
    if not isinstance(content, str) and not (
        parts and all(isinstance(part, Mapping) for part in parts)
    ):
        problems.append(
            Problem(
                f"{where}.content", "content is not a text or parts", content, "a text or parts"
            )
        )
    return problems
