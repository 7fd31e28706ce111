"""Rows that other tools write are read, whatever the file is called; nothing is guessed."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data import read_rows
from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.data.read.readers import raw_values
from rl_core.envs import accepted_ground_truths
from rl_core.errors import DataError

ROWS = [{"prompt": "a", "reward_spec": {"ground_truth": "1"}}, {"prompt": "b"}]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def values(path: Path) -> list[Any]:
    return [raw.value for raw in raw_values(path)]


def zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
}


@pytest.mark.parametrize(
    "name", ["a.json", "a.jsonl", "a.ndjson", "a.txt", "a.JSON", "part-0", "a.rows"]
)
def test_json_lines_are_read_under_any_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("\ufeff\n" + LINES, encoding="utf-8")
    assert values(tmp_path / name) == ROWS


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_list_is_read_under_any_name(tmp_path: Path, name: str, indent: int | None) -> None:
    (tmp_path / name).write_text(json.dumps(ROWS, indent=indent))
    assert values(tmp_path / name) == ROWS


def test_a_bad_line_of_json_lines_is_named_whatever_the_file_is_called(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(LINES + '{"prompt": \n')
    with pytest.raises(DataError, match=r"a\.json:3: invalid JSON"):
        values(tmp_path / "a.json")


@pytest.mark.parametrize("packing", PACKERS)
@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv"])
def test_packed_texts_are_read_and_a_truncated_one_is_named(
    tmp_path: Path, packing: str, suffix: str
) -> None:
    text = "prompt\na\n" if suffix == ".csv" else LINES
    packed = PACKERS[packing](text.encode())
    file = tmp_path / f"a{suffix}{packing}"
    file.write_bytes(packed)
    assert [row["prompt"] for row in values(file)][:1] == ["a"]
    file.write_bytes(packed[:-5])
    with pytest.raises(DataError, match=rf"a damaged or truncated \{packing} file"):
        values(file)


def test_content_that_is_no_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(gzip.compress(LINES.encode()))
    with pytest.raises(DataError, match=r"a\.jsonl: its content is \.gz, not text"):
        values(tmp_path / "a.jsonl")
    pq.write_table(pa.table({"prompt": ["a"]}), tmp_path / "b")
    assert values(tmp_path / "b") == [{"prompt": "a"}]


def test_a_table_gives_texts_and_the_lines_of_its_records(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_bytes(b'\xef\xbb\xbfprompt,answer\r\n"two\nlines",007\r\n\r\n"a ""b"", c",\r\n')
    assert [(raw.number, raw.value) for raw in raw_values(file)] == [
        (2, {"prompt": "two\nlines", "answer": "007"}),
        (5, {"prompt": 'a "b", c', "answer": ""}),
    ]
    (tmp_path / "a.tsv").write_text("prompt\tanswer\na, b\t1e3\n")
    assert values(tmp_path / "a.tsv") == [{"prompt": "a, b", "answer": "1e3"}]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2,3\n", r":2: 3 values for 2 columns"),
        ("a,a\n1,2\n", r"a name of its own; got 'a', 'a'"),
        ("a,\n1,2\n", r"a name of its own"),
        ('a,b\n1,"2\n', r":2: not readable as a table"),
        ("a,b\n", "the file is empty"),
    ],
)
def test_a_table_that_is_none_says_where(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=said):
        values(tmp_path / "a.csv")


@pytest.mark.parametrize("writer", [pa.ipc.new_stream, pa.ipc.new_file])
def test_arrow_streams_and_files_are_read(tmp_path: Path, writer: Any) -> None:
    table = pa.Table.from_pylist(ROWS)
    with writer(str(tmp_path / "a.arrow"), table.schema) as out:
        out.write_table(table, max_chunksize=1)
    assert values(tmp_path / "a.arrow") == ROWS
    (tmp_path / "b.arrow").write_bytes((tmp_path / "a.arrow").read_bytes()[:40])
    with pytest.raises(DataError, match=r"b\.arrow: not a readable Arrow file"):
        values(tmp_path / "b.arrow")


@pytest.mark.parametrize(
    "text",
    ['{"p": 1}\n{"p": {"q": [{"r": 1, "r": 2}]}}\n', '[{"p": 1},\n{"p": {"r": 1, "r": 2}}]'],
    ids=["lines", "list"],
)
def test_the_last_of_two_equal_keys_does_not_win(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match=r"a\.json:2: the key 'r' is there twice"):
        values(tmp_path / "a.json")
    bad: list[int] = []
    assert len(list(raw_values(tmp_path / "a.json", on_bad_line=lambda n, _: bad.append(n)))) == 1
    assert bad == [2]


def test_categories_and_maps_of_parquet_are_their_values(tmp_path: Path) -> None:
    role = pa.array(["user", "user"]).dictionary_encode()
    messages = pa.StructArray.from_arrays([role, pa.array(["1+1", "2+2"])], ["role", "content"])
    spec = pa.array([[("ground_truth", "2")], [("ground_truth", "4")]], pa.map_("string", "string"))
    extra = pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))
    env = pd.Categorical(["gsm8k", "gsm8k"])
    table = pa.table(
        {
            "prompt": pa.ListArray.from_arrays([0, 1, 2], messages),
            "env_class": pa.array(env),
            "reward_spec": spec,
            "extra_info": extra,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    assert next(row for _, row in read_rows(tmp_path / "a.parquet")) == {
        "prompt": [{"role": "user", "content": "1+1"}],
        "env_class": "gsm8k",
        "reward_spec": {"ground_truth": "2"},
        "extra_info": {"k": 1},
    }
    assert checked(tmp_path / "a.parquet").num_accepted == 2


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
REST = {"env_class": "gsm8k", "reward_spec": {"ground_truth": "2"}}


def checked(file: Path):
    folders: dict[str, Any] = {
        "rejects_dir": file.parent / "rejects",
        "memo_dir": file.parent / "memo",
    }
    return check_files([file], CheckSettings(accepted_ground_truths()), **folders)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_messages_kept_as_a_text_are_read_or_refused_and_never_asked(
    tmp_path: Path, suffix: str
) -> None:
    prompts = [json.dumps(MESSAGES), json.dumps(MESSAGES, indent=1), str(MESSAGES), "[1, {}] = ?"]
    file = tmp_path / f"a{suffix}"
    rows = [{"prompt": prompt, **REST} for prompt in prompts]
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    read = [row["prompt"] for _, row in read_rows(file)]
    assert read[:2] == [MESSAGES, MESSAGES]
    assert read[3] == [{"role": "user", "content": "[1, {}] = ?"}]
    report = checked(file)
    assert [(one.row, one.reason) for one in report.examples] == [(3, "not a list of messages")]


def test_messages_kept_as_a_text_are_no_media_prompt(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": json.dumps(MESSAGES)}) + "\n")
    report = checked(tmp_path / "a.jsonl")
    assert [one.reason for one in report.examples] == ["messages as a text"]
