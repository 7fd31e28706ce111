"""A dataset's own columns under a mapping: kept as a file, made once for each content."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from rl_core.data.read.mapped import mapped_files, planned_mapped
from rl_core.data.read.readers import raw_values
from rl_core.errors import DataError, RecipeError
from rl_core.runs.recipes import load_recipe
from schemas.rows.column_map import ColumnMap

MAPPING = ColumnMap({"prompt": "question", "ground_truth": "answer|after:####"})
ROWS: list[dict[str, Any]] = [
    {"question": f"{n} + 1?", "answer": f"So.\n#### {n + 1}"} for n in range(3)
]


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "train.parquet"
    pd.DataFrame(ROWS).to_parquet(path)
    return path


def test_rows_stand_in_their_order_with_all_columns(parquet: Path, tmp_path: Path):
    assert not planned_mapped([parquet], MAPPING, tmp_path / "data")[0].exists()
    (made,) = mapped_files([parquet], MAPPING, tmp_path / "data")
    assert [json.loads(line) for line in made.read_text().splitlines()] == [
        {**row, "prompt": row["question"], "reward_spec": {"ground_truth": str(n + 1)}}
        for n, row in enumerate(ROWS)
    ]


def test_it_is_made_once_for_each_content_and_mapping(parquet: Path, tmp_path: Path):
    (first,) = mapped_files([parquet], MAPPING, tmp_path / "data")
    first.write_text("kept")
    assert mapped_files([parquet], MAPPING, tmp_path / "data") == [first]
    assert first.read_text() == "kept"
    other = ColumnMap({**MAPPING.expressions, "env_class": "=gsm8k"})
    assert mapped_files([parquet], other, tmp_path / "data") != [first]
    pd.DataFrame(ROWS[:2]).to_parquet(parquet)
    assert planned_mapped([parquet], MAPPING, tmp_path / "data") != [first]


def test_no_mapping_is_the_files_themselves(parquet: Path, tmp_path: Path):
    assert mapped_files([parquet], ColumnMap({}), tmp_path / "data") == [parquet]
    assert not (tmp_path / "data").exists()


def test_pictures_stay_bytes(tmp_path: Path, png: bytes):
    path = tmp_path / "train.parquet"
    pd.DataFrame([{**ROWS[0], "images": [{"bytes": png, "path": None}]}]).to_parquet(path)
    (made,) = mapped_files([path], MAPPING, tmp_path / "data")
    assert made.suffix == ".parquet"
    assert pd.read_parquet(made)["images"][0][0]["bytes"] == png


def test_a_column_that_no_row_has_is_named(parquet: Path, tmp_path: Path):
    mapping = ColumnMap({"prompt": "problem"})
    with pytest.raises(
        DataError,
        match=r"train\.parquet: no column 'problem' to map \(there are: question, answer\)",
    ):
        mapped_files([parquet], mapping, tmp_path / "data")


def test_rows_that_do_not_fit_are_bad_rows_of_their_file(tmp_path: Path):
    path = tmp_path / "train.jsonl"
    lines = [json.dumps(row) for row in [*ROWS, {"question": "x", "answer": "no mark"}]]
    path.write_text("\n".join(["{", *lines]) + "\n")
    (made,) = mapped_files([path], MAPPING, tmp_path / "data")
    bad: dict[int, str] = {}
    good = list(
        raw_values(made, on_bad_line=lambda number, error: bad.update({number: str(error)}))
    )
    assert [raw.value["prompt"] for raw in good] == [row["question"] for row in ROWS]
    assert "invalid JSON" in bad[1]
    assert "train.jsonl:5: map ground_truth=answer|after:####: 'no mark' has no '####'" in bad[5]


def test_a_recipe_refuses_a_mapping_that_cannot_be_read():
    with pytest.raises(RecipeError, match=r"data\.map: map prompt: unknown step 'upper'"):
        load_recipe("text", ["data.map={prompt: question|upper}"])
    with pytest.raises(
        RecipeError, match=r"data\.map: not for pairs; write them with rl-train data convert"
    ):
        load_recipe("mpo", ["data.map={question: prompt}"])
