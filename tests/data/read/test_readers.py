"""Properties of the row readers."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data import read_rows
from rl_core.errors import DataError


def message(text: str) -> dict[str, Any]:
    return {"prompt": [{"role": "user", "content": text}]}


def read(path: Path, text: str | bytes, **options: Any) -> list[tuple[int, dict[str, Any]]]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_rows(path, **options))


def test_txt_gives_one_prompt_per_nonempty_line(tmp_path: Path) -> None:
    rows = read(tmp_path / "a.TXT", b"\xef\xbb\xbfone\r\n\r\nz\xc3\xbcrich\r\n")
    assert rows == [(1, message("one")), (3, message("zürich"))]


def test_jsonl_numbers_are_line_numbers_and_types_stay(tmp_path: Path) -> None:
    text = (
        '\ufeff{"prompt": "a", "reward_spec": {"ground_truth": '
        '"5"}}\r\n\r\n"b"\r\n{"reward_spec": {"ground_truth": 5}}'
    )
    rows = read(tmp_path / "a.JsonL", text)
    assert [number for number, _ in rows] == [1, 3, 4]
    assert rows[1][1] == message("b")
    assert [rows[i][1]["reward_spec"]["ground_truth"] for i in (0, 2)] == ["5", 5]


@pytest.mark.parametrize(
    "document", [["a"], {"prompts": ["a"]}, {"caption": ["a"]}, {"question": ["a"]}]
)
def test_json_accepts_lists_at_the_known_places(tmp_path: Path, document: Any) -> None:
    assert read(tmp_path / "a.json", json.dumps(document), prompt_key="question") == [
        (1, message("a"))
    ]


def test_prompt_key_becomes_prompt(tmp_path: Path) -> None:
    rows = read(tmp_path / "a.jsonl", '{"question": "a", "x": 1}', prompt_key="question")
    assert rows == [(1, {**message("a"), "x": 1})]


def test_parquet_gives_plain_lists_without_added_nulls(tmp_path: Path) -> None:
    written = [{**message(str(i)), "extra_info": {f"k{i % 2}": i, "list": [i]}} for i in range(5)]
    pq.write_table(pa.Table.from_pylist(written), tmp_path / "a.parquet", row_group_size=2)
    assert list(read_rows(tmp_path / "a.parquet")) == list(enumerate(written, start=1))


def test_parquet_written_by_pandas_reads_like_jsonl(tmp_path: Path) -> None:
    written = [message("a"), message("b")]
    pd.DataFrame(written).to_parquet(tmp_path / "a.parquet")
    assert [row for _, row in read_rows(tmp_path / "a.parquet")] == written


def test_home_folder_expands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a.txt").write_text("one")
    assert list(read_rows("~/a.txt")) == [(1, message("one"))]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.yaml",
            b"x",
            r"a\.yaml: unknown extension '\.yaml'; expected one of \.txt, \.jsonl, \.json, ",
        ),
        ("a.jsonl", b'"a"\n' * 16 + b'{"prompt": \n', r"a\.jsonl:17: invalid JSON"),
        ("a.jsonl", b"5\n", r"a\.jsonl:1: the line is a number; expected an object or a string"),
        ("a.jsonl", b"\n\n", r"a\.jsonl: the file is empty"),
        ("a.txt", b"", r"a\.txt: the file is empty"),
        ("a.json", b"", r"a\.json: the file is empty"),
        ("a.json", b'["a",\n]', r"a\.json:2: invalid JSON"),
        (
            "a.json",
            b'{"rows": []}',
            r"a\.json: the top level is an object; expected a list .* prompt or prompts or caption",
        ),
        ("a.json", b"[3]", r"a\.json:1: row 1 is a number"),
        ("a.txt", b"\xff\xfe\x00", r"a\.txt: not UTF-8"),
        ("a.parquet", b"nonsense", r"a\.parquet: not a readable Parquet file"),
    ],
)
def test_unreadable_file_says_where_and_what_would_be_right(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    with pytest.raises(DataError, match=said):
        read(tmp_path / name, content)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nope\.jsonl: no such file"):
        list(read_rows(tmp_path / "nope.jsonl"))


def test_bad_lines_can_be_collected(tmp_path: Path) -> None:
    bad: list[int] = []
    rows = read(
        tmp_path / "a.jsonl", '"a"\n{\n"b"\n', on_bad_line=lambda number, _: bad.append(number)
    )
    assert ([number for number, _ in rows], bad) == ([1, 3], [2])
