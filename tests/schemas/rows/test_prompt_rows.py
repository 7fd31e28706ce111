"""Properties of the SkyRL prompt-row schema."""

from typing import Any

import numpy as np
import pytest

from schemas.receipts import Rejection
from schemas.rows.prompt_rows import ground_truth_kind, validate_rows

ALLOWED = {
    "gsm8k": frozenset({"string", "number"}),
    "lcb": frozenset({"test_cases"}),
    "search": frozenset({"string", "list"}),
}


def row(**changes: Any) -> dict[str, Any]:
    good = {
        "prompt": [{"role": "user", "content": "2+2?"}],
        "env_class": "gsm8k",
        "reward_spec": {"ground_truth": "4"},
    }
    return {key: value for key, value in {**good, **changes}.items() if value is not ...}


def check(*rows: dict[str, Any], default: str | None = None) -> list[Rejection]:
    return validate_rows(
        list(rows),
        file="train.jsonl",
        first_row=17,
        allowed_env_classes=ALLOWED,
        default_env_class=default,
    )


CASES = [{"input": "5", "output": "25"}]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"prompt": np.array([{"role": "user", "content": "x"}], dtype=object)},
        {"prompt": [{"role": "system", "content": ""}, {"role": "user", "content": "x"}]},
        {"reward_spec": {"ground_truth": 4}},
        {"reward_spec": {"ground_truth": np.float64(4.5)}},
        {"reward_spec": ..., "reward_model": {"ground_truth": "4", "style": "rule"}},
        {"env_class": "lcb", "reward_spec": {"ground_truth": CASES}},
        {"env_class": "lcb", "reward_spec": {"ground_truth": np.array(CASES, dtype=object)}},
        {"env_class": "lcb", "reward_spec": {"ground_truth": '[{"input": "5", "output": "25"}]'}},
        {"env_class": "search", "reward_spec": {"ground_truth": np.array(["a", "b"])}},
        {"env_class": "search", "reward_spec": {"ground_truth": {"target": ["a", "b"]}}},
        {"data_source": "x", "extra_info": {"index": 0}, "ability": "math", "anything": object()},
    ],
)
def test_good_row_is_accepted(changes: dict[str, Any]) -> None:
    assert check(row(**changes)) == []


@pytest.mark.parametrize(
    ("changes", "field", "reason"),
    [
        ({"prompt": ...}, "prompt", "missing"),
        ({"prompt": "text"}, "prompt", "not a list of messages"),
        ({"prompt": []}, "prompt", "no user message"),
        ({"prompt": [{"role": "system", "content": "x"}]}, "prompt", "no user message"),
        (
            {"prompt": [{"role": "user", "content": 3}]},
            "prompt[0].content",
            "content is not a string",
        ),
        ({"prompt": [{"role": "user", "content": ""}]}, "prompt", "empty prompt"),
        (
            {"prompt": [{"role": "system", "content": "x"}, {"role": "user", "content": " \n"}]},
            "prompt",
            "empty prompt",
        ),
        ({"env_class": ...}, "env_class", "missing"),
        ({"env_class": 3}, "env_class", "not a string"),
        ({"env_class": "gsm8"}, "env_class", "unknown environment"),
        ({"reward_spec": ...}, "reward_spec", "missing"),
        ({"reward_spec": "4"}, "reward_spec", "not an object"),
        ({"reward_spec": {}}, "reward_spec", "missing ground_truth"),
        ({"reward_spec": {"ground_truth": True}}, "reward_spec.ground_truth", "not a ground truth"),
        ({"reward_spec": {"ground_truth": []}}, "reward_spec.ground_truth", "not a ground truth"),
        (
            {"reward_spec": {"ground_truth": float("nan")}},
            "reward_spec.ground_truth",
            "not a ground truth",
        ),
        ({"reward_spec": {"ground_truth": ""}}, "reward_spec.ground_truth", "empty ground truth"),
        (
            {"env_class": "search", "reward_spec": {"ground_truth": {"target": ["", " "]}}},
            "reward_spec.ground_truth",
            "empty ground truth",
        ),
        (
            {"reward_spec": {"ground_truth": ["4"]}},
            "reward_spec.ground_truth",
            "a list is not accepted by gsm8k",
        ),
        ({"data_source": 3}, "data_source", "wrong type"),
        ({"extra_info": "x"}, "extra_info", "wrong type"),
    ],
)
def test_bad_row_names_row_field_and_reason(
    changes: dict[str, Any], field: str, reason: str
) -> None:
    rejections = check(row(), row(**changes))
    assert [(r.file, r.row, r.field, r.reason) for r in rejections] == [
        ("train.jsonl", 18, field, reason)
    ]


def test_message_says_what_would_be_right() -> None:
    expected = (
        "train.jsonl:17 field reward_spec: missing ground_truth, got {}; expected a string, "
        "number or list"
    )
    assert [str(r) for r in check(row(reward_spec={}))] == [expected]


def test_every_error_of_a_batch_is_reported_in_row_order() -> None:
    bad_message = [{"role": "robot", "content": None}]
    rejections = check(
        row(prompt=bad_message, env_class="nope", reward_spec=None), row(), row(ability=1)
    )
    fields = [(r.row, r.field) for r in rejections]
    assert fields == [
        (17, "prompt[0].role"),
        (17, "prompt[0].content"),
        (17, "prompt"),
        (17, "env_class"),
        (17, "reward_spec"),
        (19, "ability"),
    ]


def test_unknown_environment_names_the_nearest() -> None:
    assert "did you mean 'gsm8k'?" in check(row(env_class="gsm8"))[0].expected


def test_default_environment_fills_only_missing_names() -> None:
    assert check(row(env_class=...), row(env_class=None), default="gsm8k") == []
    assert len(check(row(env_class="nope"), default="gsm8k")) == 1


def test_row_numbers_with_gaps_are_kept() -> None:
    rows = [row(), row(prompt=None)]
    rejections = validate_rows(
        rows, file="f", first_row=1, allowed_env_classes=ALLOWED, row_numbers=[3, 9]
    )
    assert [r.row for r in rejections] == [9]


def test_ground_truth_kind_follows_the_written_type() -> None:
    kinds = [
        ground_truth_kind(value) for value in ("5", 5, 5.0, ["5"], CASES, {"target": "x"}, {}, None)
    ]
    assert kinds == ["string", "number", "number", "list", "test_cases", "string", None, None]
