"""Files and rows as they come from the world: a clear error or the right result, never a silent
wrong one."""

import json
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data import PromptDataset, read_rows
from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.errors import DataError
from schemas.receipts import ValidationReport

ALLOWED = {"gsm8k": frozenset({"string", "number", "list"}), "lcb": frozenset({"test_cases"})}
BIG = 2**200 + 1
Check = Callable[..., ValidationReport]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def call(*paths: Path, **options: Any) -> ValidationReport:
        settings = CheckSettings(ALLOWED, **options)
        return check_files(
            paths, settings, rejects_dir=tmp_path / "rejects", memo_dir=tmp_path / "memo"
        )

    return call


def text_file(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def parquet(path: Path, rows: list[Any], **options: Any) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, **options)
    return path


def truths(path: Path) -> list[Any]:
    return [row["reward_spec"]["ground_truth"] for _, row in read_rows(path)]


def test_nan_of_pandas_counts_as_missing(tmp_path: Path, good_row, check: Check) -> None:
    rows = pd.DataFrame([good_row(max_turns=3), good_row(ability="x"), good_row(env_class=None)])
    rows.to_parquet(tmp_path / "a.parquet")
    report = check(tmp_path / "a.parquet")
    assert report.rejected_by_reason == {"missing": 1}
    assert (report.examples[0].row, report.examples[0].field) == (3, "env_class")


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_nan_is_no_ground_truth(name: str, tmp_path: Path, good_row, check: Check) -> None:
    rows = [good_row(answer=1.5), good_row(answer=math.nan), good_row(answer=math.inf)]
    path = (
        text_file(tmp_path / name, rows)
        if name.endswith("jsonl")
        else parquet(tmp_path / name, rows)
    )
    report = check(path)
    assert sum(report.rejected_by_reason.values()) == report.num_rejected == 2
    assert [example.row for example in report.examples] == [2, 3]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_nested_nulls_are_named(name: str, tmp_path: Path, good_row, check: Check) -> None:
    message = {"role": "user", "content": "x"}
    rows = [
        good_row(prompt=[message, None]),
        good_row(prompt=[message, {"role": "assistant", "content": None}]),
        good_row(prompt=[message, {"role": None, "content": "x"}]),
        good_row(reward_spec={"ground_truth": None}),
        good_row(prompt=None),
        good_row(extra_info=None),
    ]
    path = (
        text_file(tmp_path / name, rows)
        if name.endswith("jsonl")
        else parquet(tmp_path / name, rows)
    )
    found = [(one.row, one.field, one.reason) for one in check(path).examples]
    assert found == [
        (1, "prompt", "not a list of messages"),
        (2, "prompt[1].content", "content is not a string"),
        (3, "prompt[1].role", "unknown role"),
        (4, "reward_spec", "missing ground_truth"),
        (5, "prompt", "missing"),
    ]


def test_null_in_a_list_of_answers_is_refused(tmp_path: Path, good_row, check: Check) -> None:
    rows = [good_row(answer=["a", None]), good_row(answer=[]), good_row(answer=["a"])]
    for path in (text_file(tmp_path / "a.jsonl", rows), parquet(tmp_path / "a.parquet", rows)):
        assert check(path).rejected_by_reason == {"not a ground truth": 2}


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.json", "a.txt"])
def test_megabyte_prompts_are_read_whole_and_shown_short(
    name: str, tmp_path: Path, good_row, check: Check
) -> None:
    long = "long " * 200_000
    rows = [good_row(f"{i} {long}") for i in range(3)] + [good_row(long, env_class="nope")]
    path = tmp_path / name
    if name.endswith("txt"):
        path.write_text("\n".join([long] * 4))
    elif name.endswith("json"):
        path.write_text(json.dumps(rows))
    else:
        (parquet if name.endswith("parquet") else text_file)(path, rows)
    assert len(next(read_rows(path))[1]["prompt"][0]["content"]) > 999_990
    if not name.endswith("txt"):
        report = check(path)
        assert (report.num_rows, report.num_rejected) == (4, 1)
        assert all(len(str(example)) < 500 for example in report.examples)


def test_lone_surrogate_is_refused_by_line(tmp_path: Path, good_row, check: Check) -> None:
    path = text_file(
        tmp_path / "a.jsonl", [good_row("ok \U0001f600"), good_row("half \ud83d"), good_row("é")]
    )
    report = check(path)
    assert [(one.row, one.value) for one in report.examples] == [
        (2, "\\ud83d is half a surrogate pair, which is no character")
    ]
    with pytest.raises(DataError, match=r"a\.jsonl:2: .*half a surrogate pair"):
        list(read_rows(path))


def test_lone_surrogate_in_a_key_is_refused_too(tmp_path: Path, good_row, check: Check) -> None:
    assert (
        check(text_file(tmp_path / "a.jsonl", [good_row(), good_row(**{"\udc00": 1})])).num_rejected
        == 1
    )


def test_invalid_utf8_in_one_line_or_cell_leaves_the_others(
    tmp_path: Path, good_row, check: Check
) -> None:
    path = text_file(tmp_path / "a.jsonl", [good_row("one"), good_row("two"), good_row("three")])
    path.write_bytes(path.read_bytes().replace(b"two", b"t\xffo"))
    report = check(path)
    assert (report.num_accepted, report.examples[0].row) == (2, 2)
    assert "byte 0xff is not UTF-8" in report.examples[0].value

    strings = pa.array([b"one", b"t\xffo", b"three"]).view(pa.string())
    roles = pa.array(["user"] * 3)
    messages = pa.StructArray.from_arrays([roles, strings], ["role", "content"])
    table = pa.Table.from_pylist([good_row() for _ in range(3)])
    prompts = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), messages)
    pq.write_table(table.set_column(0, "prompt", prompts), tmp_path / "a.parquet")
    report = check(tmp_path / "a.parquet")
    assert (report.num_accepted, report.examples[0].row) == (2, 2)
    assert "not UTF-8" in report.examples[0].value


def test_repeated_ids_are_refused_but_not_across_kinds_of_row(tmp_path: Path, check: Check) -> None:
    rows = [
        {"prompt": "a", "prompt_id": "x"},
        {"prompt": "b", "prompt_id": "y"},
        {"prompt": "c", "prompt_id": "x"},
    ]
    report = check(text_file(tmp_path / "a.jsonl", rows))
    assert [(one.row, one.reason, one.expected) for one in report.examples] == [
        (3, "repeated id", "an id of its own; row 1 has this one")
    ]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json"])
def test_bom_is_no_part_of_the_text(name: str, tmp_path: Path) -> None:
    content = {"a.txt": "one", "a.jsonl": '"one"', "a.json": '["one"]'}[name]
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.encode())
    assert [row["prompt"][0]["content"] for _, row in read_rows(tmp_path / name)] == ["one"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.json"])
def test_utf16_is_refused_by_name(name: str, encoding: str, tmp_path: Path, check: Check) -> None:
    (tmp_path / name).write_bytes('["one"]'.encode(encoding))
    with pytest.raises(
        DataError, match=r"not UTF-8 \(it looks like UTF-16 or UTF-32\); save the file as UTF-8"
    ):
        check(tmp_path / name)


def test_mixed_newlines_are_all_newlines_and_line_numbers_hold(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"one\r\ntwo\rthree\nfour\r\n\r\nsix\xe2\x80\xa8still six")
    rows = [(number, row["prompt"][0]["content"]) for number, row in read_rows(tmp_path / "a.txt")]
    assert rows == [(1, "one"), (2, "two"), (3, "three"), (4, "four"), (6, "six\u2028still six")]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_integer_past_64_bits_keeps_all_its_digits(
    name: str, tmp_path: Path, good_row, tokenizer, check: Check
) -> None:
    rows = [good_row("1", BIG), good_row("2", -BIG), good_row("3", [BIG]), good_row("4", str(BIG))]
    path = tmp_path / name
    path.write_text(json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows)))
    assert truths(path) == [BIG, -BIG, [BIG], str(BIG)]
    assert check(path).num_accepted == 4
    items = PromptDataset([path], tokenizer, 100, cache_dir=tmp_path / "lengths").items
    assert items[0]["env_extras"]["reward_spec"]["ground_truth"] == BIG


def test_wide_integers_of_parquet_come_back_as_integers(
    tmp_path: Path, good_row, check: Check
) -> None:
    wide = Decimal(10**30 + 1)
    path = parquet(tmp_path / "a.parquet", [good_row(answer=wide), good_row(answer=Decimal(7))])
    assert truths(path) == [10**30 + 1, 7]
    assert check(path).num_accepted == 2


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_five_as_text_and_as_number_are_both_kept_as_written(
    name: str, tmp_path: Path, good_row, check: Check
) -> None:
    rows = [good_row("1", "5"), good_row("1", 5), good_row("1", 5.0)]
    path = tmp_path / name
    path.write_text(json.dumps(rows) if name.endswith("json") else "\n".join(map(json.dumps, rows)))
    assert [(type(truth), truth) for truth in truths(path)] == [(str, "5"), (int, 5), (float, 5.0)]
    assert check(path).num_accepted == 3


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"a":' * 100_000, '{"a": ' + "9" * 5000 + "}", '{"a": 1', "nope", "{'a': 1}"],
    ids=["deep list", "deep object", "5000 digits", "cut off", "bare word", "single quotes"],
)
def test_line_that_is_no_usable_json_is_named_and_the_rest_is_read(
    text: str, tmp_path: Path, good_row, check
) -> None:
    path = text_file(tmp_path / "a.jsonl", [good_row(), good_row()])
    path.write_text(path.read_text() + text + "\n" + json.dumps(good_row()) + "\n")
    report = check(path)
    assert (report.num_accepted, report.rejected_by_reason) == (3, {"unreadable line": 1})
    assert report.examples[0].row == 3


@pytest.mark.parametrize(
    "text",
    ['["a", "b"', '["a" "b"]', '["a",]', '["a"] x', '["a", {"b": ]'],
    ids=["cut off", "no comma", "comma at the end", "text after it", "bad item"],
)
def test_broken_list_is_refused_by_line(text: str, tmp_path: Path, check: Check) -> None:
    (tmp_path / "a.json").write_text("\n\n" + text)
    with pytest.raises(DataError, match=r"a\.json:3: invalid JSON"):
        check(tmp_path / "a.json")


def test_long_list_is_streamed_and_numbered(
    tmp_path: Path, good_row, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_core.data.read.files import json_stream

    monkeypatch.setattr(json_stream, "CHUNK", 7)
    rows = [good_row(f'{i} é \U0001f600 \\ " [') for i in range(50)] + ["text", "123"]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    read = list(read_rows(tmp_path / "a.json"))
    assert [number for number, _ in read] == list(range(1, 53))
    assert [row for _, row in read[:50]] == rows[:50]


@pytest.mark.parametrize(
    ("uri", "reason"),
    [
        ("../nowhere.png", "no such media file"),
        ("ftp://h/a.png", "unknown URI scheme"),
        ("javascript:alert(1)", "unknown URI scheme"),
        ("", "not a URI"),
        ("a\0.png", "not a URI"),
        (3, "not a URI"),
        ("missing.png", "no such media file"),
        ("text.png", "not a readable image"),
        ("cut.png", "not a readable image"),
        ("bomb.png", "media too large"),
    ],
)
def test_bad_media_reference_is_named(uri: Any, reason: str, tmp_path: Path, check: Check) -> None:
    from PIL import Image

    from schemas.rows.media_checks import MediaLimits

    folder = tmp_path / "data"
    folder.mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "secret.png")
    Image.new("RGB", (2000, 2000)).save(folder / "bomb.png")
    Image.new("RGB", (200, 200), (1, 2, 3)).save(folder / "cut.png")
    (folder / "cut.png").write_bytes((folder / "cut.png").read_bytes()[:-60])
    (folder / "text.png").write_text("no image")
    ref = {"modality": "image", "role": "condition", "uri": uri}
    path = text_file(folder / "a.jsonl", [{"prompt": "x", "media_refs": [ref]}, {"prompt": "y"}])
    report = check(path, limits=MediaLimits(max_pixels=10**6))
    assert report.rejected_by_reason == {reason: 1}
    assert report.examples[0].field == "media_refs[0].uri"


def test_path_inside_the_folder_may_go_up_and_down(tmp_path: Path, check: Check) -> None:
    from PIL import Image

    (tmp_path / "frames").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    ref = {"modality": "image", "role": "condition", "uri": "frames/../a.png"}
    assert (
        check(text_file(tmp_path / "a.jsonl", [{"prompt": "x", "media_refs": [ref]}])).num_accepted
        == 1
    )


def test_media_that_vanished_is_noticed_although_the_file_is_unchanged(
    tmp_path: Path, check: Check
) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    ref = {"modality": "image", "role": "condition", "uri": "a.png"}
    path = text_file(tmp_path / "a.jsonl", [{"prompt": "x", "media_refs": [ref]}])
    assert check(path).num_rejected == 0
    (tmp_path / "a.png").unlink()
    assert check(path).rejected_by_reason == {"no such media file": 1}
