"""Properties of validation over files."""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.check import batches
from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.envs.trials.settings import TrialSettings
from rl_core.errors import DataError
from schemas.receipts import ValidationReport
from schemas.rows.contract import SchemaName
from schemas.rows.media_checks import MediaLimits
from tests.data.validation import validate_files

Validate = Callable[..., ValidationReport]


@pytest.fixture
def validate(tmp_path: Path, allowed: dict[str, frozenset[str]]) -> Validate:
    def call(*paths: Path, **changes: Any) -> ValidationReport:
        folders = {"rejects_dir": tmp_path / "rejects", "memo_dir": tmp_path / "memo"}
        return validate_files(paths, **{"allowed_env_classes": allowed, **folders, **changes})

    return call


def test_every_problem_of_all_files_is_listed(
    jsonl, good_row, validate: Validate, monkeypatch
) -> None:
    monkeypatch.setattr(batches, "BATCH_ROWS", 2)
    first = jsonl(
        "a.jsonl", [good_row(), good_row(env_class="nope"), good_row(), good_row(reward_spec={})]
    )
    first.write_text(first.read_text() + '\n{"prompt": \n')
    second = jsonl("b.jsonl", [good_row(prompt=None, env_class=3), good_row()])
    report = validate(first, second, policy="drop", max_bad_fraction=0.9)
    assert (report.num_rows, report.num_accepted, report.cached) == (7, 3, False)
    listed = [json.loads(line) for line in Path(report.rejects_path or "").read_text().splitlines()]
    places = [(Path(r["file"]).name, r["row"], r["field"]) for r in listed]
    assert places == [
        ("a.jsonl", 2, "env_class"),
        ("a.jsonl", 4, "reward_spec"),
        ("a.jsonl", 6, "line"),
        ("b.jsonl", 1, "prompt"),
        ("b.jsonl", 1, "env_class"),
    ]
    assert sum(report.rejected_by_reason.values()) == 5


def test_policy_fail_shows_the_first_ten_and_the_count(jsonl, good_row, validate: Validate) -> None:
    path = jsonl("a.jsonl", [good_row()] + [good_row(reward_spec={}) for _ in range(12)])
    with pytest.raises(DataError, match=r"12 of 13 rows are refused") as caught:
        validate(path)
    assert str(caught.value).count("missing ground_truth") == 10
    assert "a.jsonl:2 field reward_spec: missing ground_truth" in str(caught.value)


def test_policy_drop_refuses_above_the_fraction(jsonl, good_row, validate: Validate) -> None:
    path = jsonl("a.jsonl", [good_row(), good_row(), good_row(), good_row(ability=3)])
    assert validate(path, policy="drop", max_bad_fraction=0.25).num_accepted == 3
    with pytest.raises(
        DataError, match=r"1 of 4 rows are refused, more than max_bad_fraction 0\.2 allows"
    ):
        validate(path, policy="drop", max_bad_fraction=0.2)


def test_no_good_row_is_refused_under_any_policy(jsonl, good_row, validate: Validate) -> None:
    path = jsonl("a.jsonl", [good_row(prompt=None)])
    with pytest.raises(DataError, match="no row can be used"):
        validate(path, policy="drop", max_bad_fraction=1.0)


def test_empty_file_is_refused(jsonl, validate: Validate) -> None:
    with pytest.raises(DataError, match=r"a\.jsonl: the file is empty"):
        validate(jsonl("a.jsonl", []))


def test_unchanged_files_are_cached_and_a_change_is_explained(
    jsonl, good_row, allowed, validate: Validate
) -> None:
    path = jsonl("a.jsonl", [good_row()])
    assert validate(path).explanation == "validated: first time for these files"
    again = validate(path)
    assert again.cached and again.explanation.startswith("cached: the same files")
    jsonl("a.jsonl", [good_row(), good_row()])
    assert validate(path).explanation == "validated: a.jsonl changed"
    changed = validate(path, allowed_env_classes={**allowed, "x": frozenset({"list"})})
    assert not changed.cached and changed.explanation.startswith("validated: environments changed")


CHANGED: dict[str, list[Any]] = {
    "allowed_env_classes": [{"gsm8k": frozenset({"string"})}],
    "default_env_class": ["gsm8k"],
    "prompt_key": ["question"],
    "schema": [SchemaName.PROMPT],
    "media_root": [Path("media")],
    "limits": [MediaLimits(max_bytes=1), MediaLimits(max_pixels=1), MediaLimits(check_remote=True)],
    "texts_alone": [True],
    "trials": [TrialSettings(), TrialSettings({"gsm8k": {"max_turns": 2}})],
}


def test_a_report_serves_again_only_under_the_settings_it_was_made_with(
    jsonl, good_row, allowed, tmp_path
) -> None:
    path, other = (
        jsonl(name, [good_row(text)]) for name, text in (("a.jsonl", "1"), ("b.jsonl", "2"))
    )
    assert CHANGED.keys() == {one.name for one in fields(CheckSettings)}
    settings = CheckSettings(allowed)

    def is_cached(*paths: Path, held_out: Sequence[Path] = (), **changes: Any) -> bool:
        folders = {"rejects_dir": tmp_path / "rejects", "memo_dir": tmp_path / "memo"}
        return check_files(paths, replace(settings, **changes), held_out=held_out, **folders).cached

    assert [is_cached(path), is_cached(path)] == [False, True]
    for name, values in CHANGED.items():
        for value in values:
            assert not is_cached(path, **{name: value}), f"{name} {value}"
    assert is_cached(path)
    # The same files, one of them held out from the other.
    assert [is_cached(path, other), is_cached(path, held_out=[other]), is_cached(path, other)] == [
        False,
        False,
        True,
    ]


def test_cached_refusal_is_still_a_refusal(jsonl, good_row, validate: Validate) -> None:
    path = jsonl("a.jsonl", [good_row(), good_row(reward_spec={})])
    for _ in range(2):
        with pytest.raises(DataError, match="1 of 2 rows are refused"):
            validate(path)


def test_lost_list_of_refused_rows_is_written_again(jsonl, good_row, validate: Validate) -> None:
    path = jsonl("a.jsonl", [good_row(), good_row(reward_spec={})])
    report = validate(path, policy="drop", max_bad_fraction=0.5)
    assert validate(path, policy="drop", max_bad_fraction=0.5).cached
    Path(report.rejects_path or "").unlink()
    assert not validate(path, policy="drop", max_bad_fraction=0.5).cached
    assert Path(report.rejects_path or "").is_file()
