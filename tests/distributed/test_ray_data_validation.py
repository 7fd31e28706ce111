"""Validation on Ray Data gives the report of a single machine."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data.check import parts
from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.distributed.cluster import configured_address
from rl_core.distributed.ray_data.validation import cluster_runner
from schemas.receipts import ValidationReport
from tests.data.ten_kinds import BAD, GOOD, write_ten_kinds

ALLOWED = {"gsm8k": frozenset({"string", "number"})}
PLACES = ("rejects_path", "warnings_path", "contamination")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Path], list[Path]]]:
    folder = tmp_path_factory.mktemp("rows")
    lines = folder / "a.jsonl"
    write_ten_kinds(lines)
    rows: list[dict[str, Any]] = [
        {**GOOD, "prompt": [{"role": "user", "content": f"row {i}"}]}
        if i % 5
        else BAD["missing ground_truth"]
        for i in range(400)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "b.parquet", row_group_size=50)
    held_out = folder / "held.txt"
    held_out.write_text("row 7\nrow 399\n")
    media = folder / "media.txt"
    media.write_text("one\ntwo\n")
    yield [lines, folder / "b.parquet", media], [held_out]


def report(
    files: tuple[list[Path], list[Path]], folder: Path, **options: Any
) -> tuple[ValidationReport, str]:
    paths, held_out = files
    folders = {"rejects_dir": folder, "memo_dir": folder / "memo"}
    found = check_files(paths, CheckSettings(ALLOWED), held_out=held_out, **folders, **options)
    placeless = found.model_copy(update=dict.fromkeys(PLACES))
    return placeless, (folder / "rejects.jsonl").read_text()


def test_report_and_rejects_are_those_of_one_machine(
    files, ray_cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MAX_PART_ROWS", 100)
    assert len(parts.parts_of(files[0][1], CheckSettings(ALLOWED))) == 4
    here = report(files, tmp_path / "here")
    there = report(files, tmp_path / "there", runner=cluster_runner("auto"))
    assert there == here
    assert here[0].rejected_by_reason["also a held-out row"] == 2
    assert here[0].rejected_by_reason["missing ground_truth"] > 80


def test_parts_that_a_node_does_not_see_are_checked_by_the_driver(
    files, ray_cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As seen by a node, which has its own working directory.
    monkeypatch.chdir(files[0][0].parent)
    relative = [Path(path.name) for path in files[0]], [Path(path.name) for path in files[1]]
    here = report(relative, tmp_path / "here")
    there = report(relative, tmp_path / "there", runner=cluster_runner("auto"))
    assert there == here and here[0].num_rows > 400


def test_error_of_a_worker_reaches_the_driver_as_itself(files, ray_cluster, tmp_path: Path) -> None:
    from rl_core.errors import DataError

    broken = tmp_path / "broken.parquet"
    whole = files[0][1].read_bytes()
    last = pq.read_metadata(files[0][1]).row_group(7)
    first_byte = min(
        last.column(i).dictionary_page_offset or last.column(i).data_page_offset
        for i in range(last.num_columns)
    )
    broken.write_bytes(whole[:first_byte] + b"\xff" * 300 + whole[first_byte + 300 :])
    assert parts.parts_of(broken, CheckSettings(ALLOWED)), "the driver sees nothing wrong"
    with pytest.raises(DataError, match=r"broken\.parquet"):
        report(([broken], []), tmp_path, runner=cluster_runner("auto"))


def test_address_comes_from_our_variable_the_recipe_or_rays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RL_TRAIN_RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert configured_address() is None
    monkeypatch.setenv("RAY_ADDRESS", "c:1")
    assert configured_address() == "c:1"
    assert configured_address("b:1") == "b:1"
    monkeypatch.setenv("RL_TRAIN_RAY_ADDRESS", "a:1")
    assert configured_address("b:1") == "a:1"
