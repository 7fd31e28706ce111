"""SkyRL prompt rows: required fields, accepted variants, and the problems reported for invalid
rows.

A row is `prompt` (chat messages), `env_class` (a registered environment) and `reward_spec` (with
`ground_truth`); `data_source`, `extra_info` and `ability` are optional and any other column is
kept. Also accepted: `reward_model` for `reward_spec` (DAPO, verl), `{"target": ...}` as ground
truth (search), test cases written as a JSON string or as lists of inputs and outputs, `max_turns`
and `db_id` next to or inside `extra_info`, and numpy arrays for lists, since that is what pandas
reads from Parquet.
"""

import re
from collections.abc import Mapping, Sequence
from numbers import Real

from rl_core.runtime.registry import nearest
from schemas.receipts import Rejection
from schemas.rows.contract import FieldRule, RowContract, SchemaName
from schemas.rows.ground_truth import (
    ANY_GROUND_TRUTH,
    GROUND_TRUTH_KINDS,
    AllowedEnvClasses,
    accepted_kind_problems,
    ground_truth_kind,
    reward_spec_problems,
)
from schemas.rows.media_checks import FindImage, MediaLimits, embedded_image_problems
from schemas.rows.messages import called_tools
from schemas.rows.problems import Problem, as_list, get, is_missing
from schemas.rows.response_rows import PARAMS, tools_problems

__all__ = [
    "ANY_GROUND_TRUTH",
    "GROUND_TRUTH_KINDS",
    "ROLES",
    "SCHEMA_VERSION",
    "AllowedEnvClasses",
    "as_list",
    "ground_truth_kind",
    "prompt_contract",
    "reward_spec_of",
    "validate_rows",
]

SCHEMA_VERSION = "4"
"""Version of the accepted rows, raised whenever they change; cached reports and prepared rows of
another version are made anew."""

ROLES = ("system", "user", "assistant")
MESSAGES = 'a list of {"role": "system" | "user" | "assistant", "content": <string>}'
OPTIONAL_TYPES: dict[str, tuple[type, str]] = {
    "data_source": (str, "a string"),
    "extra_info": (dict, "an object"),
    "ability": (str, "a string"),
}


_ENVIRONMENT_OF_SOURCE = {
    "openai/gsm8k": "gsm8k",
    "gsm8k": "gsm8k",
    "aime": "aime",
    "dapo": "aime",
    "math_dapo": "aime",
    "livecodebench": "lcb",
    "apps": "lcb",
    "taco": "lcb",
    "codecontests": "lcb",
    "code_contests": "lcb",
    "codeforces": "lcb",
    "geometry3k": "geo3k",
    "hiyouga/geometry3k": "geo3k",
    "searchr1": "search",
    "nq": "search",
    "hotpotqa": "search",
}
"""Environments that judge rows of these `data_source` as verl does."""


def suggested_environment(row: Mapping[str, object]) -> str:
    """Return the end of a message about a missing environment: what a row's `data_source` points
    to, which is nowhere taken for granted."""
    source = get(row, "data_source")
    if not isinstance(source, str):
        return ""
    words = [source.lower(), *re.split(r"[^a-z0-9_]+|_(?=nq|hotpotqa)", source.lower())]
    found = next(
        (_ENVIRONMENT_OF_SOURCE[word] for word in words if word in _ENVIRONMENT_OF_SOURCE), ""
    )
    if found:
        return f" (data_source {source!r} may be {found!r})"
    return ""


def reward_spec_of(row: Mapping[str, object]) -> object:
    """Return the row's `reward_spec`, or its `reward_model` (the DAPO and verl name for it)."""
    return get(row, "reward_spec", "reward_model")


def max_turns_of(row: Mapping[str, object]) -> object:
    """Return the row's `max_turns`, or that of its `extra_info`, or None to leave it to the
    recipe."""
    extra = row.get("extra_info")
    if not isinstance(extra, Mapping):
        return get(row, "max_turns")
    return get({**extra, **_given(row)}, "max_turns")


def prompt_contract(
    allowed_env_classes: AllowedEnvClasses,
    default_env_class: str | None = None,
    find_image: FindImage | None = None,
    limits: MediaLimits | None = None,
) -> RowContract:
    """Return the contract of prompt rows for these environments.

    Args: default_env_class: environment of rows that do not name one. find_image: resolves the
    paths of images, whose files are then opened; unset opens none.
    """

    def extract(row: Mapping[str, object]) -> dict[str, object]:
        env_class = get(row, "env_class")
        env_class = default_env_class if env_class is None else env_class
        return {
            "prompt": get(row, "prompt"),
            "env_class": _no_environment(row) if env_class is None else env_class,
            "reward_spec": reward_spec_of(row),
            "max_turns": max_turns_of(row),
            "images": get(row, "images"),
            PARAMS: get(row, PARAMS),
            **{field: get(row, field) for field in OPTIONAL_TYPES},
        }

    def optional(field: str) -> FieldRule:
        return lambda value: optional_problems(field, value)

    return RowContract(
        SchemaName.PROMPT,
        extract,
        {
            "prompt": prompt_problems,
            "env_class": lambda value: env_class_problems(value, allowed_env_classes),
            "reward_spec": reward_spec_problems,
            "max_turns": max_turns_problems,
            "images": lambda value: embedded_image_problems(value, find_image, limits),
            PARAMS: tools_problems,
            **{field: optional(field) for field in OPTIONAL_TYPES},
        },
        lambda row: [
            *empty_prompt_problems(row["prompt"], row["images"]),
            *accepted_kind_problems(row["env_class"], row["reward_spec"], allowed_env_classes),
        ],
    )


def validate_rows(
    rows: Sequence[Mapping[str, object]],
    *,
    file: str,
    first_row: int,
    allowed_env_classes: AllowedEnvClasses,
    default_env_class: str | None = None,
    row_numbers: Sequence[int] | None = None,
) -> list[Rejection]:
    """Return every error of a batch of prompt rows, in row order.

    Args: first_row: number of the first row. row_numbers: number of each row, if the numbers have
    gaps (blank lines of a file).
    Returns: one Rejection per problem; a row may have several. Empty when all rows are good.
    """
    numbers = row_numbers or range(first_row, first_row + len(rows))
    return prompt_contract(allowed_env_classes, default_env_class).validate(
        rows, file=file, row_numbers=numbers
    )


def prompt_problems(value: object) -> list[Problem]:
    """Return every problem of a row's prompt."""
    if value is None:
        return [Problem("prompt", "missing", value, MESSAGES)]
    messages = as_list(value)
    if messages is None or not all(isinstance(message, Mapping) for message in messages):
        return [Problem("prompt", "not a list of messages", value, MESSAGES)]
    problems = []
    for i, message in enumerate(messages):
        problems.extend(_message_problems(i, message, messages[:i]))
    if not any(message.get("role") == "user" for message in messages):
        problems.append(
            Problem("prompt", "no user message", value, "at least one message with role 'user'")
        )
    return problems


def empty_prompt_problems(prompt: object, images: object) -> list[Problem]:
    """Report a prompt whose user says nothing and shows no image; nothing if the prompt is invalid
    by itself."""
    if prompt is None or as_list(images) or prompt_problems(prompt):
        return []
    said = [one["content"] for one in as_list(prompt) or [] if one["role"] == "user"]
    if any(text.strip() for text in said):
        return []
    return [Problem("prompt", "empty prompt", said[-1], "a user message with text")]


def env_class_problems(value: object, allowed: AllowedEnvClasses) -> list[Problem]:
    """Return every problem of a row's environment name, or the one that it is."""
    if isinstance(value, Problem):
        return [value]
    if not isinstance(value, str):
        return [Problem("env_class", "not a string", value, "the name of an environment")]
    if value not in allowed:
        expected = "a registered environment" + nearest(value, list(allowed))
        return [Problem("env_class", "unknown environment", value, expected)]
    return []


def _no_environment(row: Mapping[str, object]) -> Problem:
    expected = "the name of an environment, or data.default_env_class in the recipe"
    return Problem("env_class", "missing", None, expected + suggested_environment(row))


def max_turns_problems(value: object) -> list[Problem]:
    """Report a row's own turn limit that is not a positive integer."""
    number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else 0.0
    whole = number >= 1 and number.is_integer()
    if value is None or whole:
        return []
    return [Problem("max_turns", "not a number of turns", value, "1 or more")]


def _message_problems(
    index: int, message: Mapping[str, object], before: Sequence[Mapping[str, object]]
) -> list[Problem]:
    problems = []
    role, content = message.get("role"), message.get("content")
    answers = role == "tool" and any(called_tools(one) for one in before)
    if role not in ROLES and not answers:
        expected = "system, user or assistant; tool after the assistant's tool_calls"
        problems.append(Problem(f"prompt[{index}].role", "unknown role", role, expected))
    if (called := called_tools(message)) and (role != "assistant" or None in called):
        expected = "calls of the assistant, each with a function's name"
        calls = message.get("tool_calls")
        problems.append(Problem(f"prompt[{index}].tool_calls", "not calls", calls, expected))
    if not isinstance(content, str):
        value = None if is_missing(content) else content
        problems.append(
            Problem(f"prompt[{index}].content", "content is not a string", value, "a string")
        )
    return problems


def optional_problems(field: str, value: object) -> list[Problem]:
    """Return the problem of a column in `OPTIONAL_TYPES` with a value of another type."""
    type_, expected = OPTIONAL_TYPES[field]
    if value is None or isinstance(value, type_):
        return []
    return [Problem(field, "wrong type", value, expected)]


def _given(row: Mapping[str, object]) -> dict[str, object]:
    value = get(row, "max_turns")
    if value is None:
        return {}
    return {"max_turns": value}
