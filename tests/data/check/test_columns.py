"""The Arrow screen and the row contract say the same about every row."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data.check.columns import suspicious_rows
from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.data.read.files import parquet_files
from rl_core.data.read.readers import read_rows
from schemas.rows.prompt_rows import prompt_contract
from tests.data.seed_skyrl import ALLOWED, GSM8K, LCB, SEARCH

ROLES = ("system", "user", "assistant", "robot", "", None)
TEXTS = ("x", "", " \x1c\u2003\n", None)


def random_rows(rng: random.Random, truth_kind: str, num_rows: int) -> list[dict[str, Any]]:
    """Rows of one Arrow schema with something wrong in most of them."""
    truths = {
        "string": lambda: rng.choice(["5", "", " \x1d", None, '[{"input": "1", "output": "1"}]']),
        "int": lambda: rng.choice([5, 0, -1, None]),
        "float": lambda: rng.choice([5.0, float("nan"), float("inf"), None]),
        "bool": lambda: rng.choice([True, False, None]),
        "strings": lambda: rng.choice([["a"], [], ["a", None], ["", " "], ["", "a"], None]),
        "floats": lambda: rng.choice([[1.0], [float("nan")], [], None]),
        "cases": lambda: rng.choice([[{"input": "1"}], [], [None], None]),
        "target": lambda: rng.choice([{"target": ["a"]}, {"target": None}, {"target": []}, None]),
        "object": lambda: rng.choice([{"a": 1, "target": "x"}, None]),
    }

    def message() -> Any:
        return rng.choice(
            [None, *({"role": rng.choice(ROLES), "content": rng.choice(TEXTS)} for _ in range(6))]
        )

    def row() -> dict[str, Any]:
        good = {"role": "user", "content": "question"}
        spec = {"method": "rule", "ground_truth": truths[truth_kind]()}
        return {
            "prompt": rng.choice(
                [None, [], [good], [good, message()], [message(), good], [message()]]
            ),
            "env_class": rng.choice([*ALLOWED, "gsm9k", "", None]),
            "reward_spec": rng.choice([spec, spec, spec, None]),
            "data_source": rng.choice(["x", None]),
            "extra_info": rng.choice([{"max_turns": rng.choice([3, 0, None])}, None]),
        }

    return [row() for _ in range(num_rows)]


@pytest.mark.parametrize(
    "truth_kind",
    ["string", "int", "float", "bool", "strings", "floats", "cases", "target", "object"],
)
def test_screened_file_gets_the_rejections_of_the_row_contract(
    truth_kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "MAX_BATCH_ROWS", 60)
    default = "gsm8k" if truth_kind in ("int", "strings", "target") else None
    rows = random_rows(random.Random(truth_kind), truth_kind, 150)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=100)
    numbered = list(read_rows(path))
    contract = prompt_contract(ALLOWED, default)
    expected = contract.validate(
        [row for _, row in numbered], file=str(path), row_numbers=[n for n, _ in numbered]
    )
    settings = CheckSettings(ALLOWED, default)
    report = check_files(
        [path], settings, rejects_dir=tmp_path / "rejects", memo_dir=tmp_path / "memo"
    )
    listed = [
        json.loads(line)
        for line in (tmp_path / "rejects" / "rejects.jsonl").read_text().splitlines()
    ]
    assert listed == [rejection.model_dump() for rejection in expected]
    assert (report.num_rows, report.num_rejected) == (
        150,
        len({rejection.row for rejection in expected}),
    )


@pytest.mark.parametrize("row", [GSM8K, LCB, SEARCH], ids=["string", "test cases", "list"])
def test_good_rows_never_become_python_objects(row: dict[str, Any]) -> None:
    (batch,) = pa.Table.from_pylist([row] * 5).to_batches()
    assert suspicious_rows(batch, ALLOWED, None) == []


@pytest.mark.parametrize("type_", [pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_every_kind_of_string_column_is_screened(type_: pa.DataType) -> None:
    table = pa.Table.from_pylist(
        [GSM8K, {**GSM8K, "env_class": None}, {**GSM8K, "env_class": "nope"}]
    )
    place = table.schema.get_field_index("env_class")
    (batch,) = table.set_column(place, "env_class", table["env_class"].cast(type_)).to_batches()
    assert suspicious_rows(batch, ALLOWED, None) == [1, 2]
    assert suspicious_rows(batch, ALLOWED, "gsm8k") == [2]


def test_column_of_an_unknown_type_sends_its_rows_to_the_contract() -> None:
    (batch,) = pa.Table.from_pylist([{**GSM8K, "prompt": 3}, {**GSM8K, "prompt": 4}]).to_batches()
    assert suspicious_rows(batch, ALLOWED, None) == [0, 1]


def test_memory_is_bounded_by_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {**GSM8K, "prompt": [{"role": "user", "content": f"{i}" + "x" * 1000}]} for i in range(2000)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    monkeypatch.setattr(parquet_files, "MAX_BATCH_BYTES", 50_000)
    sizes = [batch.num_rows for batch in parquet_files.record_batches(tmp_path / "a.parquet")]
    assert sum(sizes) == 2000
    assert max(sizes) < 1000
