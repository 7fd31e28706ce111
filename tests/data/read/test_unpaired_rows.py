"""Rows of one answer with a label are pairs only where two answer the same prompt."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.check.contracts import recognise
from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.data.read.files.text_files import RawValue
from rl_core.data.read.pair_files import PairFile
from rl_core.data.read.unpaired_rows import paired
from rl_core.errors import DataError
from schemas.rows.contract import SchemaName


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def row(prompt: Any, completion: Any, label: Any) -> dict[str, Any]:
    return {"prompt": prompt, "completion": completion, "label": label}


def test_opposite_labels_of_a_prompt_make_pairs_in_order(tmp_path: Path) -> None:
    talk = [{"role": "user", "content": "r"}]
    rows = [
        *(row("q", "good 1", True), row(talk, "bad", False), row("q", "bad 1", False)),
        *(row("q", "good 2", True), row("q", "bad 2", 0)),
        row(talk, [{"role": "assistant", "content": "good"}], 1),
    ]
    file = write(tmp_path / "kto.jsonl", rows)
    pairs = PairFile(file)
    found = [(one.question, one.chosen, one.rejected) for one in (pairs[0], pairs[1], pairs[2])]
    assert found == [("q", "good 1", "bad 1"), ("q", "good 2", "bad 2"), ("r", "good", "bad")]
    assert recognise(file) is SchemaName.PREFERENCE


def test_an_answer_without_its_opposite_is_named_by_its_row(tmp_path: Path) -> None:
    rows = [row("q", "a", True), row("p", "b", True), row("q", "c", False), row("p", "d", "yes")]
    file = write(tmp_path / "kto.jsonl", rows)
    with pytest.raises(DataError, match=r"kto\.jsonl:4: label 'yes'; expected true or false"):
        PairFile(file)
    bad: dict[int, str] = {}
    assert len(PairFile(file, lambda number, error: bad.update({number: str(error)}))) == 1
    assert bad[2].endswith("one answer, and no bad one to the same prompt to compare it with")
    folders: dict[str, Any] = {"rejects_dir": tmp_path / "rejects", "memo_dir": tmp_path / "memo"}
    report = check_files([file], CheckSettings({}), **folders)
    assert {one.row for one in report.examples} == {2, 4} and report.num_accepted == 1


def test_rows_that_wait_on_disk_pair_as_those_in_memory_do(tmp_path: Path) -> None:
    drawn = random.Random(0)
    rows = [
        RawValue(number, row(drawn.choice(["q", "p", ["r"], None]), f"é{number}", label), 7)
        for number, label in enumerate(drawn.choices([True, False, 1, 0], k=200), start=1)
    ]
    rows.insert(50, RawValue(500, {"question": "x", "chosen": "a", "rejected": "b"}, 7))
    told: list[int] = []
    found = [one.number for one in paired(iter(rows), "f", lambda number, _: told.append(number))]
    asked: dict[str, tuple[list[int], list[int]]] = {}
    for raw in rows[:50] + rows[51:]:
        sides = asked.setdefault(repr(raw.value["prompt"]), ([], []))
        sides[not raw.value["label"]].append(raw.number)
    pairs = [number for good, bad in asked.values() for number, _ in zip(good, bad, strict=False)]
    left = [
        number
        for sides in asked.values()
        for side in sides
        for number in side[min(map(len, sides)) :]
    ]
    assert found == [500, *pairs] and told == left
