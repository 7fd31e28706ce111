"""Prepared rows that are read from a memory-mapped file are those that were written."""

import errno
import os
import pickle
import random
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data import PromptDataset
from rl_core.data.order.mixture import BlendedSource
from rl_core.data.order.prompt_source import PromptSource
from rl_core.data.order.source_of_recipe import training_source
from rl_core.data.prepare.prompts import load_prepared
from rl_core.data.store.arrow_copy import ROWS_AT_ONCE
from rl_core.data.store.prompt_rows import PreparedWriter
from rl_core.errors import DataError, StorageError

REPOSITORY = Path(__file__).parents[3]
BYTES_A_ROW = 64
ODD: list[dict[str, Any]] = [
    {"prompt": [], "env_extras": {}},
    {"prompt": [{"role": "user", "content": "é 漢 🙂 \x00 \u2028"}], "env_class": None},
    {"env_extras": {"reward_spec": {"ground_truth": "5"}, "data_source": "a"}},
    {"env_extras": {"reward_spec": {"ground_truth": 5}, "extra": [[], [None, [1, [2.5]]], {}]}},
    {"env_extras": {"reward_spec": {"ground_truth": 2**80 + 1}, "other": -(2**63)}},
    {"env_extras": {"numbers": [0.1, 1e-320, 1.7976931348623157e308, 1.0, True, False]}},
    {"env_extras": {"images": ["/a/b.png", {"path": "é.jpg"}], "": {"nested": {"key": None}}}},
    {"metadata": {"a": []}, "media_refs": [{"uri": "s3://x", "sha256": "0" * 64}]},
]


def write(path: Path, items: list[dict[str, Any]], batch: int = 3) -> Path:
    with PreparedWriter(path) as writer:
        for first in range(0, len(items), batch):
            some = items[first : first + batch]
            writer.write(some, [1] * len(some))
    return path


def numbered(count: int) -> list[dict[str, Any]]:
    """Items of three sources, of different lengths."""
    return [
        {
            "prompt": [{"role": "user", "content": f"{row} " * (row % 5)}],
            "env_class": "gsm8k",
            "env_extras": {"reward_spec": {"ground_truth": row}, "data_source": "abc"[row % 3]},
            "uid": f"{row:016x}-0",
        }
        for row in range(count)
    ]


def copy_of(path: Path) -> Path:
    return path.with_name(f".{path.stem}.arrow")


def test_rows_are_equal_to_those_put_in_with_the_same_types(tmp_path: Path) -> None:
    items = [item | {"uid": f"u-{place}"} for place, item in enumerate(ODD)]
    rows = load_prepared(write(tmp_path / "train.parquet", items))
    assert rows == items and items == rows and rows != items[1:]
    for made, put in zip(rows, items, strict=True):
        # 1, 1.0 and True are equal and not the same.
        assert pickle.dumps(_ordered(made)) == pickle.dumps(_ordered(put))


def test_any_row_is_read_by_its_index(tmp_path: Path) -> None:
    items = numbered(ROWS_AT_ONCE + 100)
    rows = load_prepared(write(tmp_path / "train.parquet", items, batch=4096))
    assert len(rows) == len(items)
    places = random.Random(0).sample(range(len(items)), 200)
    assert [rows[place] for place in places] == [items[place] for place in places]
    assert rows[-1] == items[-1] and rows[ROWS_AT_ONCE - 2 :: 1] == items[ROWS_AT_ONCE - 2 :]
    assert rows[::5000] == items[::5000] and list(rows.uids) == [item["uid"] for item in items]
    for beyond in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            rows[beyond]


def test_no_row_is_changed_by_who_was_given_it(tmp_path: Path) -> None:
    rows = load_prepared(write(tmp_path / "train.parquet", numbered(2)))
    rows[0]["env_extras"]["reward_spec"]["ground_truth"] = "another"
    assert rows[0] == numbered(1)[0]


def test_another_process_reads_the_rows_it_is_sent(tmp_path: Path) -> None:
    rows = load_prepared(write(tmp_path / "train.parquet", numbered(50)))
    assert len(pickle.dumps(rows)) < 1000
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(list, rows).result() == numbered(50)


def test_an_epoch_continues_in_its_middle_with_the_order_it_had_in_memory(tmp_path: Path) -> None:
    items = numbered(100)
    rows = load_prepared(write(tmp_path / "train.parquet", items))
    expected = list(range(100))
    random.Random("7/0").shuffle(expected)
    source = PromptSource(rows, 30, seed=7)
    assert source.next_batch() == [items[place] for place in expected[:30]]
    state = source.state_dict()
    later = PromptSource(load_prepared(tmp_path / "train.parquet"), 30, seed=7)
    later.load_state_dict(state)
    in_memory = PromptSource(items, 30, seed=7)
    in_memory.load_state_dict(state)
    for _ in range(5):
        assert later.next_batch() == in_memory.next_batch() == source.next_batch()


def test_a_blend_and_a_filter_keep_places_alone(tmp_path: Path, tokenizer: Any) -> None:
    items = numbered(60)
    path = write(tmp_path / "train.parquet", items)
    blend = {"a": 1.0, "b": 2.0, "c": 1.0}
    source = training_source(load_prepared(path), 6, 0, blend)
    by_source = {
        name: [one for one in items if one["env_extras"]["data_source"] == name] for name in blend
    }
    in_memory = BlendedSource(by_source, blend, 6, 0)
    assert [source.next_batch() for _ in range(20)] == [in_memory.next_batch() for _ in range(20)]
    dataset = PromptDataset([path], tokenizer, 4, cache_dir=tmp_path / "lengths")
    short = [item for row, item in enumerate(items) if row % 5 <= 2]
    assert dataset.items == short and dataset.num_dropped == len(items) - len(short)


@pytest.mark.parametrize("damage", ["cut", "empty", "gone", "of another file"])
def test_a_copy_that_is_not_whole_or_not_of_the_file_is_made_anew(
    damage: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "train.parquet", numbered(500))
    first = load_prepared(path)
    copy = copy_of(path)
    if damage == "cut":
        copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
    elif damage == "empty":
        copy.write_bytes(b"")
    elif damage == "gone":
        copy.unlink()
    else:
        other = write(tmp_path / "other.parquet", numbered(3))
        load_prepared(other)
        copy_of(other).replace(copy)
    before = copy.stat().st_ino if copy.exists() else None
    assert load_prepared(path) == numbered(500)
    assert copy.stat().st_ino != before, "made anew"
    kept = copy.stat().st_ino
    assert len(load_prepared(path)) == 500 and copy.stat().st_ino == kept, "and then kept"
    if damage != "cut" and damage != "empty":
        assert first[499] == numbered(500)[499], "an open mapping outlives its name"
    assert [one.name for one in tmp_path.iterdir() if one.suffix == ".tmp"] == []


def test_a_folder_that_cannot_be_written_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = tmp_path / "cache", tmp_path / "tmp"
    folder.mkdir()
    elsewhere.mkdir()
    monkeypatch.setenv("TMPDIR", str(elsewhere))
    monkeypatch.setattr("tempfile.tempdir", None)
    path = write(folder / "train.parquet", numbered(20))
    if os.geteuid() == 0:  # to whom no folder is closed
        refuse(monkeypatch, folder, errno.EROFS)
    folder.chmod(0o555)
    try:
        rows = load_prepared(path)
        assert rows == numbered(20)
    finally:
        folder.chmod(0o755)
    assert not copy_of(path).exists() and list(elsewhere.iterdir()) == []


def test_a_full_disk_is_said_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "train.parquet", numbered(20))
    refuse(monkeypatch, tmp_path, errno.ENOSPC)
    with pytest.raises(StorageError, match=r"cannot write .*\.train\.arrow: the disk is full"):
        load_prepared(path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "train.parquet", numbered(500))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"train\.parquet: not a readable Parquet file"):
        load_prepared(path)


def test_a_row_takes_a_few_bytes_of_the_drivers_memory(tmp_path: Path) -> None:
    num_rows = 200_000
    text = pa.array([f'{{"prompt": "{"word " * 40}{row}"}}' for row in range(num_rows)])
    uids = pa.array([f"{row:016x}-0" for row in range(num_rows)])
    table = pa.table({"row": text, "uid": uids, "num_tokens": pa.array([1] * num_rows, pa.int32())})
    for count in (1000, num_rows):
        pq.write_table(table.slice(0, count), tmp_path / f"{count}.parquet", row_group_size=4096)
    script = (
        "import sys; from benchmarks.size import anonymous_bytes as held\n"
        "from rl_core.data.prepare.prompts import load_prepared\n"
        "from rl_core.data.order.prompt_source import PromptSource\n"
        "few, many = sys.argv[1:]\n"
        "PromptSource(load_prepared(few), 8, 0).next_batch(); load_prepared(many)\n"
        "before = held('self'); source = PromptSource(load_prepared(many), 8, 0)\n"
        "[source.next_batch() for _ in range(2000)]\n"
        "print(len(source.items), held('self') - before)\n"
    )
    paths = [str(tmp_path / f"{count}.parquet") for count in (1000, num_rows)]
    done = subprocess.run(
        [sys.executable, "-c", script, *paths],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    counted, grown = map(int, done.stdout.split())
    assert counted == num_rows and grown / num_rows < BYTES_A_ROW, "over 200 are in the file"


def refuse(monkeypatch: pytest.MonkeyPatch, folder: Path, number: int) -> None:
    """Let no file be made in a folder, with this error of the system."""
    real = Path.open

    def refused(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if self.parent == folder and "x" in mode:
            raise OSError(number, os.strerror(number), str(self))
        return real(self, mode, *args, **kwargs)

    monkeypatch.setattr(Path, "open", refused)


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return [(key, _ordered(value[key])) for key in sorted(value)]
    return [_ordered(one) for one in value] if isinstance(value, list) else value
