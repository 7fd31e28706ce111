"""The accepted kinds of `reward_spec.ground_truth`: a string, a number, a list of answers, a list
of test cases."""

import json
import math
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any

from schemas.rows.problems import Problem, as_list, is_missing

GROUND_TRUTH_KINDS = {
    "string": "a string",
    "number": "a finite number",
    "list": "a list of strings or numbers",
    "test_cases": "a list of test cases (objects)",
}
ANY_GROUND_TRUTH = "a string, number or list"

AllowedEnvClasses = Mapping[str, frozenset[str]]
"""Ground-truth kinds, out of `GROUND_TRUTH_KINDS`, that each environment accepts."""


def ground_truth_kind(ground_truth: object) -> str | None:
    """Return the kind of a ground truth, a key of `GROUND_TRUTH_KINDS`, or None if no kind matches.

    A `{"target": ...}` object (search) has the kind of its target.
    """
    if isinstance(ground_truth, str):
        return "string"
    if isinstance(ground_truth, Mapping):
        if paired_test_cases(ground_truth) is not None:
            return "test_cases"
        if set(ground_truth) == {"target"}:
            return ground_truth_kind(ground_truth["target"])
        return None
    items = as_list(ground_truth)
    if items is None:
        if _is_number(ground_truth):
            return "number"
        return None
    if items and all(isinstance(item, str) or _is_number(item) for item in items):
        return "list"
    if items and all(isinstance(item, Mapping) for item in items):
        return "test_cases"
    return None


def paired_test_cases(ground_truth: object) -> list[dict[str, object]] | None:
    """Return test cases that are written as `{"inputs", "outputs", "fn_name"}`, which APPS, PRIME
    and Eurus do, as objects; None for anything else.

    A function's output may be wrapped in a list of its own there: such cases are marked `wrapped`.
    """
    if not isinstance(ground_truth, Mapping):
        return None
    inputs, outputs = (as_list(ground_truth.get(name)) for name in ("inputs", "outputs"))
    if not inputs or outputs is None or len(inputs) != len(outputs):
        return None
    name = ground_truth.get("fn_name")
    if is_missing(name) or not name:
        pairs = zip(map(_as_lines, inputs), map(_as_lines, outputs), strict=True)
        return [{"input": given, "output": said, "testtype": "stdin"} for given, said in pairs]
    marks = {"testtype": "functional", "metadata": {"func_name": name}, "wrapped": True}
    pairs = zip(inputs, outputs, strict=True)
    return [{"input": given, "output": said, **marks} for given, said in pairs]


def _as_lines(value: object) -> str:
    items = as_list(value)
    texts = [value] if items is None else items
    return "\n".join(one if isinstance(one, str) else json.dumps(one) for one in texts)


def reward_spec_problems(value: object) -> list[Problem]:
    """Return every problem of a row's reward specification, regardless of its environment."""
    if value is None:
        return [
            Problem(
                "reward_spec", "missing", value, f"an object with ground_truth ({ANY_GROUND_TRUTH})"
            )
        ]
    if not isinstance(value, Mapping):
        return [
            Problem(
                "reward_spec",
                "not an object",
                value,
                f"an object with ground_truth ({ANY_GROUND_TRUTH})",
            )
        ]
    ground_truth = value.get("ground_truth")
    if ground_truth is None:
        return [Problem("reward_spec", "missing ground_truth", value, ANY_GROUND_TRUTH)]
    if ground_truth_kind(ground_truth) is None:
        return [
            Problem(
                "reward_spec.ground_truth",
                "not a ground truth",
                ground_truth,
                one_of(GROUND_TRUTH_KINDS),
            )
        ]
    if is_blank(ground_truth):
        expected = "an answer with text; an empty reply would earn the reward"
        return [Problem("reward_spec.ground_truth", "empty ground truth", ground_truth, expected)]
    return []


def is_blank(ground_truth: object) -> bool:
    """Return True for a text without a visible character, or a list of such texts alone."""
    if isinstance(ground_truth, Mapping):
        return is_blank(ground_truth.get("target"))
    if isinstance(ground_truth, str):
        return not ground_truth.strip()
    items = as_list(ground_truth)
    return bool(items) and all(isinstance(one, str) and not one.strip() for one in items or [])


def accepted_kind_problems(
    env_class: object, reward_spec: Any, allowed: AllowedEnvClasses
) -> list[Problem]:
    """Report a ground truth of a kind that the environment does not accept; nothing if the
    environment or the reward specification is invalid by itself."""
    if (
        not isinstance(env_class, str)
        or env_class not in allowed
        or reward_spec_problems(reward_spec)
    ):
        return []
    ground_truth, kinds = reward_spec["ground_truth"], allowed[env_class]
    kind = ground_truth_kind(ground_truth)
    if kind in kinds or ("test_cases" in kinds and _holds_test_cases(ground_truth)):
        return []
    expected = f"{one_of(kinds)}, which is what {env_class} accepts"
    return [
        Problem(
            "reward_spec.ground_truth",
            f"a {kind} is not accepted by {env_class}",
            ground_truth,
            expected,
        )
    ]


def one_of(kinds: Iterable[str]) -> str:
    """Return the kinds as a phrase for an error message."""
    order = list(GROUND_TRUTH_KINDS)
    return ", or ".join(GROUND_TRUTH_KINDS[kind] for kind in sorted(kinds, key=order.index))


def _is_number(value: object) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return True  # of any size: `math.isfinite` would overflow past 1e308
    return (
        isinstance(value, Real)
        and not isinstance(value, bool)
        and not is_missing(value)
        and math.isfinite(value)
    )


def _holds_test_cases(ground_truth: object) -> bool:
    if not isinstance(ground_truth, str) or not ground_truth.lstrip().startswith(("[", "{")):
        return False
    try:
        return ground_truth_kind(json.loads(ground_truth)) == "test_cases"
    except (ValueError, RecursionError):
        return False
