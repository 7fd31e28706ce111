"""A folder gives the split that is asked for, and its metadata is not taken for rows."""

import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from rl_core.data import read_rows
from rl_core.data.read.sources import data_files
from rl_core.errors import DataError


def lay(folder: Path, *names: str) -> Path:
    """Write files of one row each, whose prompt is the file's path."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"prompt": name}) + "\n")
    return folder


def read(source: Any) -> list[str]:
    return [
        row["prompt"][0]["content"] for file in data_files(source) for _, row in read_rows(file)
    ]


@pytest.mark.parametrize(
    ("train", "validation", "test"),
    [
        ("train/data.jsonl", "validation/data.jsonl", "test/data.jsonl"),
        ("train.jsonl", "val.jsonl", "test.jsonl"),
        ("data/train-00000-of-00001.jsonl", "data/dev-00000-of-00001.jsonl", "data/eval-1.jsonl"),
        ("gsm8k_train.json", "gsm8k_valid.json", "gsm8k_test.json"),
        ("a/Training/x.ndjson", "a/Validation/x.ndjson", "a/Test/x.ndjson"),
    ],
)
def test_each_split_is_asked_for_by_name(
    tmp_path: Path, train: str, validation: str, test: str
) -> None:
    folder = lay(tmp_path / "d", train, validation, test)
    assert read(folder) == read(f"{folder}:train") == read({"path": str(folder)}) == [train]
    assert read(f"{folder}:validation") == [validation]
    assert read(f"{folder}:test") == read({"path": str(folder), "split": "test"}) == [test]


def test_a_folder_whose_names_say_nothing_is_all_its_files(tmp_path: Path) -> None:
    folder = lay(tmp_path / "test" / "d", "b.jsonl", "a.jsonl", "sub/c.jsonl", "_notes.json")
    (folder / "README.txt").write_text("about")
    assert read(folder) == ["a.jsonl", "b.jsonl", "sub/c.jsonl"]
    with pytest.raises(DataError, match=r"split 'test' cannot be told, since a\.jsonl names none"):
        read(f"{folder}:test")


def test_a_folder_that_is_a_split_itself_needs_no_name(tmp_path: Path) -> None:
    folder = lay(tmp_path / "test", "test-00000-of-00002.jsonl", "test-00001-of-00002.jsonl")
    assert len(read(folder)) == 2


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["train.jsonl", "more.jsonl"], r"since more\.jsonl names none; give the files or a glob"),
        (["train/test.jsonl", "train/a.jsonl"], r"since train/test\.jsonl names several"),
        (
            ["test.jsonl"],
            r"no file of the split 'train'; this folder has test, asked for as .*:test",
        ),
        (
            ["train_sft-00000-of-00001.jsonl", "train_prefs-00000-of-00001.jsonl"],
            r"no file of the split 'train'; this folder has train_prefs, train_sft",
        ),
    ],
)
def test_what_cannot_be_told_is_refused_with_the_list(
    tmp_path: Path, names: list[str], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        read(lay(tmp_path / "d", *names))


def test_a_split_of_any_name_is_asked_for(tmp_path: Path) -> None:
    names = ["train_sft-00000-of-00001.jsonl", "test_sft-00000-of-00001.jsonl"]
    assert read(f"{lay(tmp_path / 'd', *names)}:test_sft") == [names[1]]


def test_what_datasets_saves_is_read(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_list([{"prompt": "a", "n": "007"}, {"prompt": "b", "n": "1"}])
    rows.save_to_disk(tmp_path / "one", num_shards=2)
    both = datasets.DatasetDict(train=rows, test=rows.select([1]))
    both.save_to_disk(tmp_path / "both")
    rows.to_json(tmp_path / "train.json")
    assert read(tmp_path / "one") == read(tmp_path / "both") == ["a", "b"]
    assert read(tmp_path / "train.json") == ["a", "b"]
    assert read(f"{tmp_path / 'both'}:test") == read(tmp_path / "both" / "test") == ["b"]
    with pytest.raises(DataError, match=r"no split 'dev'; this dataset has train, test"):
        read(f"{tmp_path / 'both'}:dev")
    (tmp_path / "one" / "data-00001-of-00002.arrow").unlink()
    with pytest.raises(DataError, match=r"not whole: data-00001-of-00002\.arrow is missing"):
        read(tmp_path / "one")


def test_a_copy_of_a_hub_dataset_is_read_by_its_card(tmp_path: Path) -> None:
    folder = lay(tmp_path / "d", "x/one.jsonl", "x/two.jsonl", "y/three.jsonl")
    one = "- split: train\n    path: x/one.jsonl\n  - split: test\n    path: x/two.jsonl"
    card = f"---\nconfigs:\n- config_name: x\n  default: true\n  data_files:\n  {one}\n"
    other = "- config_name: y\n  data_files: y/three.jsonl\n---\n# A dataset\n"
    (folder / "README.md").write_text(card + other)
    assert read(folder) == ["x/one.jsonl"]
    assert read(f"{folder}:test") == ["x/two.jsonl"]
    assert read({"path": str(folder), "config": "y"}) == ["y/three.jsonl"]
    with pytest.raises(DataError, match="no split 'dev'"):
        read(f"{folder}:dev")


def test_folders_behind_links_are_entered_once(tmp_path: Path) -> None:
    big = lay(tmp_path / "big", "a.jsonl")
    folder = lay(tmp_path / "d", "b.jsonl")
    (folder / "linked").symlink_to(big)
    (folder / "again").symlink_to(big)
    (folder / "round").symlink_to(folder)
    assert sorted(read(folder)) == ["a.jsonl", "b.jsonl"]


@pytest.mark.parametrize("source", ["", "  ", {"path": ""}])
def test_an_empty_name_is_refused(source: Any) -> None:
    with pytest.raises(DataError, match="an empty name of a file"):
        data_files(source)
