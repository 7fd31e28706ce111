"""From what a person writes to files: globs, folders, and datasets in the hub's cache."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data import PromptDataset, read_rows
from rl_core.data.read.hub import HubName
from rl_core.data.read.recipe_files import planned_sources, resolve_sources
from rl_core.data.read.sources import data_files
from rl_core.errors import DataError
from schemas.rows.column_map import ColumnMap

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "fedcba9876543210fedcba9876543210fedcba98"


def names(files: list[Path]) -> list[str]:
    return [file.name for file in files]


def lines(*texts: str) -> str:
    return "".join(json.dumps(text) + "\n" for text in texts)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache as `huggingface_hub` lays it out, with nothing but it to ask."""
    from huggingface_hub import constants

    cache = tmp_path / "hub"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return cache


def add_dataset(
    cache: Path, repo: str, commit: str, files: dict[str, str | bytes], ref: str = "main"
) -> None:
    root = cache / f"datasets--{repo.replace('/', '--')}"
    for number, (name, content) in enumerate(files.items()):
        blob = root / "blobs" / f"{commit[:8]}{number}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content.encode() if isinstance(content, str) else content)
        link = root / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (root / "refs").mkdir(exist_ok=True)
    (root / "refs" / ref).write_text(commit)


def prompts(source: Any) -> list[str]:
    return [
        row["prompt"][0]["content"] for file in data_files(source) for _, row in read_rows(file)
    ]


def test_glob_and_folder_give_files_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a.jsonl", "sub/c.txt", ".hidden/d.txt", "readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('"x"\n')
    assert names(data_files(str(tmp_path / "*.jsonl"))) == ["a.jsonl", "b.jsonl"]
    assert names(data_files(str(tmp_path / "**" / "*.txt"))) == ["c.txt"]
    assert names(data_files(tmp_path)) == ["a.jsonl", "b.jsonl", "c.txt"]
    assert len(list(read_rows(tmp_path))) == 3


@pytest.mark.parametrize("name", ["no*.jsonl", "empty"])
def test_glob_or_folder_without_files_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no data file"):
        data_files(str(tmp_path / name))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("openai/gsm8k", HubName("openai/gsm8k")),
        ("openai/gsm8k:test", HubName("openai/gsm8k", split="test")),
        ("openai/gsm8k@abc", HubName("openai/gsm8k", revision="abc")),
        ("openai/gsm8k/main", HubName("openai/gsm8k", config="main")),
        ("openai/gsm8k/main@v1.0:test", HubName("openai/gsm8k", "main", "v1.0", "test")),
        ("squad", HubName("squad")),
    ],
)
def test_dataset_name_has_config_revision_and_split(text: str, name: HubName) -> None:
    assert HubName.parse(text) == name
    assert HubName.parse(str(name)) == name


def test_split_is_train_unless_said(hub: Path) -> None:
    add_dataset(hub, "org/set", COMMIT, {"train.jsonl": lines("a", "b"), "test.jsonl": lines("c")})
    assert prompts("org/set") == ["a", "b"]
    assert prompts("org/set:test") == prompts({"path": "org/set", "split": "test"}) == ["c"]
    with pytest.raises(
        DataError, match=r"org/set:dev: no split 'dev'; this dataset has (train, test|test, train)"
    ):
        prompts("org/set:dev")


def test_config_and_revision_choose_the_files(hub: Path) -> None:
    card = (
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: "
        "main/*.jsonl\n- config_name: socratic\n  data_files:\n  - split: train\n    path: "
        "socratic/*.jsonl\n---\n"
    )
    add_dataset(hub, "org/set", OLDER, {"train.jsonl": lines("old")}, ref="v1")
    files = {"README.md": card, "main/x.jsonl": lines("m"), "socratic/x.jsonl": lines("s")}
    add_dataset(hub, "org/set", COMMIT, files)
    assert prompts("org/set/main") == ["m"]
    assert prompts({"path": "org/set", "config": "socratic"}) == ["s"]
    assert prompts("org/set@v1") == prompts(f"org/set@{OLDER}") == ["old"]
    assert COMMIT in str(data_files("org/set/main")[0])
    with pytest.raises(DataError, match="org/set"):
        prompts("org/set")
    with pytest.raises(DataError, match="nope"):
        prompts("org/set/nope")


def test_json_rows_of_a_dataset_keep_the_types_that_were_written(hub: Path) -> None:
    rows = [{"prompt": "a", "reward_spec": {"ground_truth": truth}} for truth in ("5", 5, 2**70)]
    add_dataset(
        hub, "org/set", COMMIT, {"train.jsonl": "".join(json.dumps(row) + "\n" for row in rows)}
    )
    truths = [row["reward_spec"]["ground_truth"] for _, row in read_rows("org/set")]
    assert truths == ["5", 5, 2**70]


def test_parquet_shards_are_read_in_order_and_a_missing_one_is_noticed(hub: Path) -> None:
    def shard(text: str) -> bytes:
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({"prompt": [text]}), sink)
        return sink.getvalue().to_pybytes()

    files: dict[str, str | bytes] = {
        f"data/train-0000{i}-of-00002.parquet": shard(str(i)) for i in range(2)
    }
    add_dataset(hub, "org/set", COMMIT, files)
    assert prompts("org/set") == ["0", "1"]
    (
        hub / "datasets--org--set" / "snapshots" / COMMIT / "data" / "train-00001-of-00002.parquet"
    ).unlink()
    with pytest.raises(DataError, match=r"only 1 of 2 files are in .*; fetch it online once"):
        prompts("org/set")


def test_a_table_of_a_dataset_is_read_as_texts(hub: Path) -> None:
    add_dataset(hub, "org/set", COMMIT, {"train.csv": "prompt,answer\na,1\nb,02\n"})
    rows = [row for file in data_files("org/set") for _, row in read_rows(file)]
    assert [row["answer"] for row in rows] == ["1", "02"]


def test_dataset_that_is_not_here_is_refused_offline_and_planned_as_a_fetch_online(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = r"org/none:train: no such file, and no such dataset in the local cache"
    with pytest.raises(DataError, match=said):
        data_files("org/none")
    with pytest.raises(DataError, match=said):
        planned_sources(["org/none"], tmp_path, ColumnMap({}))
    monkeypatch.setattr("huggingface_hub.constants.is_offline_mode", lambda: False)
    monkeypatch.setattr("rl_core.data.read.hub.hub_problem", lambda: None)
    files, first = planned_sources(["org/none"], tmp_path, ColumnMap({}))
    assert files == []
    assert first.startswith("the dataset would be fetched first")


def test_recipe_entries_become_files(hub: Path, tmp_path: Path) -> None:
    add_dataset(hub, "org/set", COMMIT, {"train.jsonl": lines("a")})
    (tmp_path / "x.jsonl").write_text(lines("b"))
    task = {"task": "chain_sum", "size": 2}
    entries = ["org/set", str(tmp_path / "*.jsonl"), task, {"path": str(tmp_path / "x.jsonl")}]
    assert (
        planned_sources(entries, tmp_path / "data", ColumnMap({}))[1]
        == "the problems would be generated first"
    )
    files = resolve_sources(entries, tmp_path / "data", ColumnMap({}))
    assert [file.suffix for file in files] == [".jsonl"] * 4
    assert files[1] == files[3] == tmp_path / "x.jsonl"
    assert planned_sources(entries, tmp_path / "data", ColumnMap({})) == (files, "")


def test_unknown_key_of_a_source_is_refused_when_the_recipe_is_loaded() -> None:
    from rl_core.errors import RecipeError
    from rl_core.runs.recipes import parse_recipe

    values = {
        "name": "r",
        "model": {"path": "m"},
        "data": {"train": [{"path": "x", "splt": "a"}], "eval": ["y"]},
    }
    with pytest.raises(
        RecipeError, match=r"data\.train\.0\.splt: unknown key \(did you mean 'split'\?\)"
    ):
        parse_recipe(values)


def test_prompt_dataset_takes_names_and_globs(
    hub: Path, tokenizer, good_row, jsonl, tmp_path: Path
) -> None:
    add_dataset(hub, "org/set", COMMIT, {"train.jsonl": json.dumps(good_row("1")) + "\n"})
    jsonl("b.jsonl", [good_row("2")])
    dataset = PromptDataset(
        ["org/set", str(tmp_path / "b*.jsonl")], tokenizer, 10, cache_dir=tmp_path / "lengths"
    )
    assert [item["prompt"][0]["content"] for item in dataset.items] == ["1", "2"]
