"""Contaminated rows are reported, left out or refused, in validation and in preparation alike."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rl_core.data.check.files import apply_policy, check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.data.overlap.found import Contamination
from rl_core.data.prepare.pairs import prepare_pairs
from rl_core.data.prepare.prompts import (
    PreparationSettings,
    load_prepared,
    plan_cache,
    prepare_cache,
)
from rl_core.errors import DataError
from schemas.receipts import Overlap, OverlapKind, ValidationReport
from schemas.recipe import Recipe
from schemas.sections.training import ContaminationPolicy

REPORT, DROP, FAIL = ContaminationPolicy
LONG = "7 6 5 4 3 2 1 0 1 2 3 4 5 6 7 8 9 8 7"
FILES = ["1 2 3", "5 4", f"9 9 {LONG} 1", "8 8 8"]


@pytest.fixture
def files(jsonl, good_row) -> tuple[Path, Path, Path]:
    """Training rows, of which the third holds the held-out row and the second repeats a benchmark's
    in another writing."""
    train = jsonl("train.jsonl", [good_row(text) for text in FILES])
    held_out = jsonl("eval.jsonl", [good_row(LONG), good_row("4 4")])
    return train, held_out, jsonl("bench.jsonl", [{"problem": "6"}, {"problem": " 5  4."}])


@pytest.fixture
def settings(tmp_path: Path, allowed) -> PreparationSettings:
    places: dict[str, Any] = {"cache_root": tmp_path / "cache", "memo_dir": tmp_path / "memo"}
    return PreparationSettings("a", "tiny", 100, allowed_env_classes=allowed, **places)


def check(folder: Path, allowed: Any, files: Any, policy: ContaminationPolicy) -> ValidationReport:
    train, held_out, benchmark = files
    return check_files(
        [train],
        CheckSettings(allowed),
        held_out=[held_out],
        contamination=Contamination(policy, (benchmark,)),
        rejects_dir=folder / "rejects",
        memo_dir=folder / "memo",
    )


def test_the_report_counts_by_pair_of_files_and_shows_both_rows(
    tmp_path: Path, files, allowed
) -> None:
    report = check(tmp_path, allowed, files, REPORT)
    apply_policy(report, "fail", 0.0)
    found = report.contamination
    assert found is not None and (found.policy, found.num_rows) == ("report", 2)
    counts = {(pair.other_file, pair.benchmark): pair.count for pair in found.pairs}
    assert counts == {(str(files[1]), False): 1, (str(files[2]), True): 1}
    lines = Path(found.path).read_text().splitlines()
    benchmark, held_out = map(Overlap.model_validate_json, lines)
    assert (benchmark.row, benchmark.other_row, benchmark.kind) == (2, 2, OverlapKind.SAME)
    assert (held_out.row, held_out.other_row, held_out.passage) == (3, 1, LONG)
    assert check(tmp_path, allowed, files, REPORT).cached


def test_fail_names_the_rows_in_validation_and_in_preparation(
    tmp_path: Path, files, allowed, settings, tokenizer
) -> None:
    train, held_out, benchmark = files
    report = check(tmp_path, allowed, files, FAIL)
    failing = replace(settings, contamination=Contamination(FAIL, (benchmark,)))
    message = rf"(?s)2 training rows.*{train}:2 and {benchmark}:2.*{train}:3 and {held_out}:1"
    with pytest.raises(DataError, match="2 training rows") as caught:
        apply_policy(report, "drop", 1.0)
    assert f"{train}:3 and {held_out}:1" in str(caught.value)
    with pytest.raises(DataError, match=message):
        prepare_cache([train], [held_out], failing, tokenizer=tokenizer)


def test_drop_leaves_out_training_rows_alone_and_changes_the_hash_only_where_set(
    files, settings, tokenizer
) -> None:
    train, held_out, benchmark = files
    dropping = replace(settings, contamination=Contamination(DROP, (benchmark,)))
    receipt = prepare_cache([train], [held_out], dropping, tokenizer=tokenizer)
    kept = load_prepared(Path(receipt.path) / "train.parquet")
    assert [one["prompt"][0]["content"] for one in kept] == [FILES[0], FILES[3]]
    assert (receipt.num_eval_rows, receipt.dropped["contaminated"]) == (2, 2)

    def run_hash(policy: ContaminationPolicy, *benchmarks: Path) -> str:
        under = replace(settings, contamination=Contamination(policy, benchmarks))
        return plan_cache([train], [held_out], under).run_hash

    assert run_hash(DROP, benchmark) == receipt.run_hash
    same = {run_hash(REPORT), run_hash(REPORT, benchmark), run_hash(FAIL, benchmark)}
    assert same == {plan_cache([train], [held_out], settings).run_hash}
    assert len({*same, run_hash(DROP), run_hash(DROP, benchmark)}) == 3


def test_a_held_out_question_itself_is_left_out_by_drop_and_else_refused(
    tmp_path: Path, jsonl, good_row, allowed, settings, tokenizer
) -> None:
    files = (
        jsonl("train.jsonl", [good_row("1"), good_row("2")]),
        jsonl("eval.jsonl", [good_row("2")]),
        jsonl("bench.jsonl", ["0"]),
    )
    dropped = check(tmp_path, allowed, files, DROP)
    apply_policy(dropped, "fail", 0.0)
    assert dropped.contamination is not None and dropped.contamination.num_rows == 1
    with pytest.raises(DataError, match="also a held-out row"):
        apply_policy(check(tmp_path, allowed, files, REPORT), "fail", 0.0)
    dropping = replace(settings, contamination=Contamination(DROP))
    receipt = prepare_cache([files[0]], [files[1]], dropping, tokenizer=tokenizer)
    assert (receipt.num_train_rows, receipt.dropped["contaminated"]) == (1, 1)


def test_a_benchmark_without_a_question_is_refused(tmp_path: Path, jsonl, files, allowed) -> None:
    odd = jsonl("odd.jsonl", [{"wording": "why"}])
    with pytest.raises(DataError, match=r"odd\.jsonl: none of its 1 rows has a question"):
        check(tmp_path, allowed, (*files[:2], odd), REPORT)


def test_the_same_words_about_another_picture_are_another_question(
    tmp_path: Path, jsonl, good_row, allowed
) -> None:
    for name, colour, size in (("a", "red", 8), ("b", "blue", 8), ("c", "red", 9)):
        Image.new("RGB", (size, size), colour).save(tmp_path / f"{name}.png")
    Image.open(tmp_path / "a.png").save(tmp_path / "copy.bmp")

    def shown(*names: str) -> list[dict[str, Any]]:
        return [good_row("What is this?", images=[{"path": name}]) for name in names]

    train = jsonl("train.jsonl", [*shown("b.png", "copy.bmp", "c.png"), good_row("What is this?")])
    files = train, jsonl("eval.jsonl", shown("a.png")), jsonl("bench.jsonl", ["why"])
    found = check(tmp_path, allowed, files, REPORT).contamination
    assert found is not None
    assert [one.row for pair in found.pairs for one in pair.first] == [2]


def test_pairs_are_compared_by_question_and_held_out_pairs_stay(tmp_path: Path, jsonl) -> None:
    def pair(question: str) -> dict[str, str]:
        return {"prompt": question, "chosen": "yes", "rejected": "no"}

    train = jsonl("train.jsonl", [pair("Is it so?"), pair("IS IT SO"), pair("Or so?")])
    held_out = jsonl("eval.jsonl", [pair("Is it so?"), pair("Never?")])
    recipe = Recipe.model_validate(
        {
            "name": "pairs",
            "domain": "preference",
            "model": {"path": "tiny"},
            "algorithm": {"name": "mpo"},
            "data": {"train": [str(train)], "eval": [str(held_out)]},
        }
    )
    folders = tmp_path / "data", tmp_path / "cache"
    reported = prepare_pairs(recipe, *folders)
    assert (reported.num_train_rows, reported.dropped["also held out"]) == (2, 1)
    dropped = prepare_pairs(recipe, *folders, Contamination(DROP))
    assert (dropped.num_train_rows, dropped.num_eval_rows) == (1, 2)
    assert dropped.dropped["contaminated"] == 2
    with pytest.raises(DataError, match=r"train\.jsonl:2 and .*eval\.jsonl:1"):
        prepare_pairs(recipe, *folders, Contamination(FAIL))


def test_files_that_moved_are_named_as_they_are_now(tmp_path: Path, files, allowed) -> None:
    check(tmp_path, allowed, files, REPORT)
    moved = tuple(file.rename(file.with_name(f"new-{file.name}")) for file in files)
    found = check(tmp_path, allowed, moved, REPORT).contamination
    assert found is not None
    named = {pair.file for pair in found.pairs} | {pair.other_file for pair in found.pairs}
    assert named == set(map(str, moved))
    lines = Path(found.path).read_text().splitlines()
    assert {json.loads(line)["file"] for line in lines} == {str(moved[0])}
