"""Rows that passed their contract are built with their environments, in every format."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data.check.files import apply_policy, check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.data.prepare.prompts import PreparationSettings, load_prepared, prepare_cache
from rl_core.envs import accepted_ground_truths
from rl_core.envs.trials.settings import TrialSettings
from rl_core.errors import DataError
from schemas.receipts import ValidationReport

SETTINGS = CheckSettings(accepted_ground_truths(), trials=TrialSettings())


def row(text: str, truth: Any, env: str = "gsm8k", **more: Any) -> dict[str, Any]:
    prompt = [{"role": "user", "content": text}]
    spec = {"method": "rule", "ground_truth": truth}
    return {"prompt": prompt, "env_class": env, "reward_spec": spec, **more}


def checked(folder: Path, train: Path, *held_out: Path) -> ValidationReport:
    folders: dict[str, Any] = {"rejects_dir": folder / "rejects", "memo_dir": folder / "memo"}
    return check_files([train], SETTINGS, held_out=held_out, **folders)


def test_what_an_environment_refuses_is_a_problem_of_the_row(tmp_path: Path, jsonl) -> None:
    train = jsonl("train.jsonl", [row("a", "49"), row("b", "forty-nine"), row("c", 5)])
    held_out = jsonl(
        "held-out.jsonl",
        [
            row("d", "7"),
            row("e", "SELECT 1", "text2sql", data_source="spider"),
            row("f", [{"in": "1", "out": "2"}], "lcb"),
            row("g", "4", "reasoning_gym"),
        ],
    )
    report = checked(tmp_path, train, held_out)
    assert (report.num_rows, report.num_accepted) == (7, 3)
    lines = Path(report.rejects_path or "").read_text().splitlines()
    places = [
        (Path(one["file"]).name, one["row"], one["field"], one["reason"])
        for one in map(json.loads, lines)
    ]
    assert places == [
        ("train.jsonl", 2, "reward_spec.ground_truth", "refused by gsm8k"),
        ("held-out.jsonl", 2, "db_id", "refused by text2sql"),
        ("held-out.jsonl", 3, "reward_spec.ground_truth", "refused by lcb"),
        ("held-out.jsonl", 4, "extra_info.task", "refused by reasoning_gym"),
    ]
    with pytest.raises(DataError, match=r"train\.jsonl:2 .*got 'forty-nine'; .*must be a number"):
        apply_policy(report, "fail", 0.0)


def test_parquet_is_judged_as_json_lines_are(tmp_path: Path, jsonl) -> None:
    rows = [row(str(i), "x" if i % 7 == 3 else str(i)) for i in range(20)]
    rows[5]["env_class"] = "nobody"
    path = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=8)
    listed = []
    for file in (path, jsonl("train.jsonl", rows)):
        report = checked(tmp_path, file)
        found = map(json.loads, Path(report.rejects_path or "").read_text().splitlines())
        listed.append([(one["row"], one["field"], one["reason"]) for one in found])
    assert listed[0] == listed[1]
    assert [number for number, _, _ in listed[0]] == [4, 6, 11, 18]


def test_a_refusal_of_an_environment_is_looked_at_again(tmp_path: Path, jsonl) -> None:
    good = jsonl("good.jsonl", [row("a", "4")])
    assert [checked(tmp_path, good).cached for _ in range(2)] == [False, True]
    bad = jsonl("bad.jsonl", [row("a", "four")])
    assert [checked(tmp_path, bad).cached for _ in range(2)] == [False, False]


def test_preparation_drops_the_rows_that_validation_refuses(
    tmp_path: Path, jsonl, tokenizer
) -> None:
    train = jsonl("train.jsonl", [row("1", "4"), row("2", "four"), row("3", "5")])
    settings = PreparationSettings(
        "trials",
        "tokenizer",
        100,
        tmp_path / "cache",
        tmp_path / "memo",
        accepted_ground_truths(),
        policy="drop",
        max_bad_fraction=0.5,
        trials=TrialSettings(),
    )
    receipt = prepare_cache([train], [], settings, tokenizer=tokenizer)
    assert receipt.dropped["invalid"] == 1
    prompts = [
        item["prompt"][0]["content"] for item in load_prepared(Path(receipt.path) / "train.parquet")
    ]
    assert prompts == ["1", "3"]


def test_rows_that_are_free_or_cannot_be_earned_are_listed_and_stay_good(
    tmp_path: Path, jsonl
) -> None:
    halting = {"task": "game_of_life_halting", "seed": 1, "index": 0}
    rows = [
        row("a", "5", "aime"),
        row("b", "x" * 400, "aime"),
        row("c", "True", "reasoning_gym", extra_info=halting),
        row("d", [{"input": "1", "output": "2"}], "lcb"),
    ]
    options = {"reasoning_gym": {"allow_unsound_scorers": True, "answer": "text"}}
    settings = replace(SETTINGS, trials=TrialSettings(options, oracle_rows=None))
    folders: dict[str, Any] = {"rejects_dir": tmp_path / "rejects", "memo_dir": tmp_path / "memo"}
    report = check_files([jsonl("train.jsonl", rows)], settings, **folders)
    assert report.num_accepted == 4
    lines = Path(report.warnings_path or "").read_text().splitlines()
    listed = [(one["row"], one["reason"]) for one in map(json.loads, lines)]
    assert listed == [(2, "cannot be earned"), (3, "free")]
    assert [(group.reason, group.count) for group in report.warnings] == [
        ("cannot be earned", 1),
        ("free", 1),
    ]
    assert list(report.untried) == ["lcb rows are not played"]
    # Nothing about the rows has changed, so nothing is played again.
    again = check_files([tmp_path / "train.jsonl"], settings, **folders)
    assert again.cached and again.warnings == report.warnings


def test_the_sample_is_spread_over_the_file(tmp_path: Path, jsonl) -> None:
    rows = [row(str(i), str(i) if i % 2 else "x" * 400, "aime") for i in range(400)]
    table = tmp_path / "train.parquet"
    pq.write_table(pa.Table.from_pylist(rows), table, row_group_size=64)
    settings = replace(SETTINGS, trials=TrialSettings(oracle_rows=10))
    for file in (table, jsonl("train.jsonl", rows)):
        folders: dict[str, Any] = {
            "rejects_dir": tmp_path / "rejects",
            "memo_dir": tmp_path / "memo",
        }
        report = check_files([file], settings, **folders)
        lines = Path(report.warnings_path or "").read_text().splitlines()
        numbers = [json.loads(line)["row"] for line in lines]
        assert 8 <= len(numbers) <= 14 and numbers[0] == 1 and numbers[-1] > 320
