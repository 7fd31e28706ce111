"""SkyRL prompt rows: what a row must hold, as a lazy pandera schema, and what is said about one that does not.

A row is `prompt` (chat messages), `env_class` (a registered environment) and `reward_spec` (with `ground_truth`);
`data_source`, `extra_info` and `ability` are optional and any other column is kept. Also accepted: `reward_model`
for `reward_spec` (DAPO, verl), `{"target": ...}` as ground truth (search), test cases written as a JSON string, and
numpy arrays where lists are meant, since that is what pandas reads from Parquet.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

from rl_core.registry import nearest
from schemas.receipts import Rejection

if TYPE_CHECKING:
    import pandas as pd
    import pandera.pandas as pa

SCHEMA_VERSION = "1"
"""Raised whenever the set of accepted rows changes: cached reports and prepared rows are then remade."""

ROLES = ("system", "user", "assistant")
GROUND_TRUTH_KINDS = {
    "string": "a string",
    "number": "a finite number",
    "list": "a list of strings or numbers",
    "test_cases": "a list of test cases (objects)",
}
ANY_GROUND_TRUTH = "a string, number or list"
MESSAGES = 'a list of {"role": "system" | "user" | "assistant", "content": <string>}'
OPTIONAL_TYPES: dict[str, tuple[type, str]] = {
    "data_source": (str, "a string"),
    "extra_info": (dict, "an object"),
    "ability": (str, "a string"),
}

AllowedEnvClasses = Mapping[str, frozenset[str]]
"""Environment name -> the ground-truth kinds it accepts, out of `GROUND_TRUTH_KINDS`."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with one value."""

    field: str
    reason: str
    value: Any
    expected: str


def as_list(value: Any) -> list[Any] | None:
    """A list, tuple or numpy array as a list; None for anything else."""
    if isinstance(value, list | tuple):
        return list(value)
    if getattr(value, "ndim", 0) > 0 and hasattr(value, "tolist"):
        return value.tolist()
    return None


def reward_spec_of(row: Mapping[str, Any]) -> Any:
    """The row's `reward_spec`, or its `reward_model` (the DAPO and verl name for it)."""
    spec = row.get("reward_spec")
    return row.get("reward_model") if spec is None else spec


def ground_truth_kind(ground_truth: Any) -> str | None:
    """The kind of a ground truth, a key of `GROUND_TRUTH_KINDS`, or None when it is of no accepted kind."""
    if isinstance(ground_truth, str):
        return "string"
    if isinstance(ground_truth, Mapping):
        return ground_truth_kind(ground_truth["target"]) if set(ground_truth) == {"target"} else None
    items = as_list(ground_truth)
    if items is None:
        return "number" if _is_number(ground_truth) else None
    if items and all(isinstance(item, str) or _is_number(item) for item in items):
        return "list"
    return "test_cases" if items and all(isinstance(item, Mapping) for item in items) else None


def prompt_problems(value: Any) -> list[Problem]:
    """Everything wrong with a row's prompt."""
    if value is None:
        return [Problem("prompt", "missing", value, MESSAGES)]
    messages = as_list(value)
    if messages is None or not all(isinstance(message, Mapping) for message in messages):
        return [Problem("prompt", "not a list of messages", value, MESSAGES)]
    problems = [problem for i, message in enumerate(messages) for problem in _message_problems(i, message)]
    if not any(message.get("role") == "user" for message in messages):
        problems.append(Problem("prompt", "no user message", value, "at least one message with role 'user'"))
    return problems


def env_class_problems(value: Any, allowed: AllowedEnvClasses) -> list[Problem]:
    """Everything wrong with a row's environment name."""
    if value is None:
        expected = "the name of an environment in the row, or a default in the recipe"
        return [Problem("env_class", "missing", value, expected)]
    if not isinstance(value, str):
        return [Problem("env_class", "not a string", value, "the name of an environment")]
    if value not in allowed:
        expected = "a registered environment" + nearest(value, list(allowed))
        return [Problem("env_class", "unknown environment", value, expected)]
    return []


def reward_spec_problems(value: Any) -> list[Problem]:
    """Everything wrong with a row's reward specification, whatever its environment."""
    if value is None:
        return [Problem("reward_spec", "missing", value, f"an object with ground_truth ({ANY_GROUND_TRUTH})")]
    if not isinstance(value, Mapping):
        return [Problem("reward_spec", "not an object", value, f"an object with ground_truth ({ANY_GROUND_TRUTH})")]
    ground_truth = value.get("ground_truth")
    if ground_truth is None:
        return [Problem("reward_spec", "missing ground_truth", value, ANY_GROUND_TRUTH)]
    if ground_truth_kind(ground_truth) is None:
        return [Problem("reward_spec.ground_truth", "not a ground truth", ground_truth, _one_of(GROUND_TRUTH_KINDS))]
    return []


def accepted_kind_problems(env_class: Any, reward_spec: Any, allowed: AllowedEnvClasses) -> list[Problem]:
    """Whether the environment takes this kind of ground truth; silent where either is wrong by itself."""
    if not isinstance(env_class, str) or env_class not in allowed or reward_spec_problems(reward_spec):
        return []
    ground_truth, kinds = reward_spec["ground_truth"], allowed[env_class]
    kind = ground_truth_kind(ground_truth)
    if kind in kinds or ("test_cases" in kinds and _holds_test_cases(ground_truth)):
        return []
    expected = f"{_one_of(kinds)}, which is what {env_class} accepts"
    return [Problem("reward_spec.ground_truth", f"a {kind} is not accepted by {env_class}", ground_truth, expected)]


def prompt_row_schema(allowed_env_classes: AllowedEnvClasses) -> "pa.DataFrameSchema":
    """The schema of a frame made by `rows_to_frame`; validate with `lazy=True` to get every error at once."""
    import pandera.pandas as pa

    columns = {
        field: pa.Column(object, _cell_check(field, problems), nullable=True)
        for field, problems in _column_checks(allowed_env_classes).items()
    }

    def accepted(frame: "pd.DataFrame") -> "pd.Series":
        pairs = zip(frame["env_class"], frame["reward_spec"], strict=True)
        return _as_series((not accepted_kind_problems(env, spec, allowed_env_classes) for env, spec in pairs), frame)

    check = pa.Check(accepted, name="accepted_kind", ignore_na=False)
    return pa.DataFrameSchema(columns, checks=check, strict=False)


def rows_to_frame(rows: Sequence[Mapping[str, Any]], default_env_class: str | None) -> "pd.DataFrame":
    """The checked columns of `rows` as Python objects, aliases resolved and the default environment filled in."""
    import pandas as pd

    def column(values: Iterable[Any]) -> "pd.Series":
        return pd.Series(list(values), dtype=object)

    env_classes = (default_env_class if row.get("env_class") is None else row["env_class"] for row in rows)
    columns = {"prompt": column(row.get("prompt") for row in rows), "env_class": column(env_classes)}
    columns["reward_spec"] = column(reward_spec_of(row) for row in rows)
    columns |= {field: column(row.get(field) for row in rows) for field in OPTIONAL_TYPES}
    return pd.DataFrame(columns)


def validate_rows(
    rows: list[dict[str, Any]],
    *,
    file: str,
    first_row: int,
    allowed_env_classes: AllowedEnvClasses,
    default_env_class: str | None = None,
    row_numbers: Sequence[int] | None = None,
) -> list[Rejection]:
    """Every error of a batch of rows, in row order.

    Args: first_row: number of the first row. row_numbers: the number of each row, where they have gaps
    (blank lines of a file).
    Returns: one Rejection per problem; a row may have several. Empty when all rows are good.
    """
    import pandera.errors

    frame = rows_to_frame(rows, default_env_class)
    try:
        prompt_row_schema(allowed_env_classes).validate(frame, lazy=True)
    except pandera.errors.SchemaErrors as error:
        failed = sorted({int(index) for index in error.failure_cases["index"].dropna()})
        if not failed:
            raise
    else:
        return []
    numbers = row_numbers or range(first_row, first_row + len(rows))
    return [
        _rejection(problem, file, numbers[i])
        for i in failed
        for problem in _row_problems(frame, i, allowed_env_classes)
    ]


def _message_problems(index: int, message: Mapping[str, Any]) -> list[Problem]:
    problems = []
    if message.get("role") not in ROLES:
        problems.append(
            Problem(f"prompt[{index}].role", "unknown role", message.get("role"), "system, user or assistant")
        )
    if not isinstance(message.get("content"), str):
        value = message.get("content")
        problems.append(Problem(f"prompt[{index}].content", "content is not a string", value, "a string"))
    return problems


def _optional_problems(field: str, value: Any) -> list[Problem]:
    type_, expected = OPTIONAL_TYPES[field]
    if value is None or isinstance(value, type_):
        return []
    return [Problem(field, "wrong type", value, expected)]


def _column_checks(allowed: AllowedEnvClasses) -> dict[str, Callable[[Any], list[Problem]]]:
    def optional(field: str) -> Callable[[Any], list[Problem]]:
        return lambda value: _optional_problems(field, value)

    checks = {"prompt": prompt_problems, "env_class": lambda value: env_class_problems(value, allowed)}
    return checks | {"reward_spec": reward_spec_problems} | {field: optional(field) for field in OPTIONAL_TYPES}


def _cell_check(field: str, problems: Callable[[Any], list[Problem]]) -> "pa.Check":
    import pandera.pandas as pa

    # pandera drops nulls before a check unless told otherwise, and a missing value is a problem to report.
    return pa.Check(lambda column: _as_series((not problems(v) for v in column), column), name=field, ignore_na=False)


def _row_problems(frame: "pd.DataFrame", index: int, allowed: AllowedEnvClasses) -> list[Problem]:
    row = {str(field): frame[field].iat[index] for field in frame.columns}
    problems = [problem for field, check in _column_checks(allowed).items() for problem in check(row[field])]
    return problems + accepted_kind_problems(row["env_class"], row["reward_spec"], allowed)


def _as_series(values: Iterable[bool], like: "pd.Series | pd.DataFrame") -> "pd.Series":
    import pandas as pd

    return pd.Series(list(values), index=like.index, dtype=bool)


def _rejection(problem: Problem, file: str, row: int) -> Rejection:
    text = "nothing" if problem.value is None else repr(problem.value)
    return Rejection(
        file=file,
        row=row,
        field=problem.field,
        reason=problem.reason,
        value=text if len(text) <= 80 else text[:77] + "...",
        expected=problem.expected,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _holds_test_cases(ground_truth: Any) -> bool:
    if not isinstance(ground_truth, str) or not ground_truth.lstrip().startswith("["):
        return False
    try:
        return ground_truth_kind(json.loads(ground_truth)) == "test_cases"
    except json.JSONDecodeError:
        return False


def _one_of(kinds: Iterable[str]) -> str:
    order = list(GROUND_TRUTH_KINDS)
    return ", or ".join(GROUND_TRUTH_KINDS[kind] for kind in sorted(kinds, key=order.index))
