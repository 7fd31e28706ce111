"""Every promise of SkyRL's data format page, on its own examples."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from datasets import Dataset

from rl_core.data import PromptDataset, read_rows
from rl_core.errors import DataError
from schemas.receipts import ValidationReport
from tests.data.seed_skyrl import ALLOWED, EXAMPLES, GSM8K, LCB, SEARCH, TEXT2SQL
from tests.data.validation import validate_files

WITHOUT_SPEC = {key: value for key, value in GSM8K.items() if key != "reward_spec"}
FORMATS = ("parquet by datasets", "parquet by pandas", "json", "jsonl")


@pytest.fixture
def check(tmp_path: Path) -> Callable[..., ValidationReport]:
    def call(*paths: Path, **changes: Any) -> ValidationReport:
        folders = {"rejects_dir": tmp_path / "rejects", "memo_dir": tmp_path / "memo"}
        return validate_files(paths, **{"allowed_env_classes": ALLOWED, **folders, **changes})

    return call


def write(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    if kind == "parquet by datasets":
        Dataset.from_list(rows).to_parquet(folder / "train.parquet")
        return folder / "train.parquet"
    if kind == "parquet by pandas":
        pd.DataFrame(rows).to_parquet(folder / "train.parquet")
        return folder / "train.parquet"
    path = folder / f"data.{kind}"
    path.write_text(json.dumps(rows) if kind == "json" else "\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_complete_example_is_accepted_and_read_back_as_written(
    name: str, kind: str, tmp_path: Path, check
) -> None:
    row = EXAMPLES[name]
    path = write(tmp_path, kind, [row])
    assert check(path).num_accepted == 1
    assert list(read_rows(path)) == [(1, row)]


def test_what_the_dataset_script_writes_is_good(tmp_path: Path, check) -> None:
    def example(split: str, number: int) -> dict[str, Any]:
        asked = [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"{split} question {number}"},
        ]
        return {
            "data_source": "my_custom_dataset",
            "prompt": asked,
            "env_class": "my_env",
            "reward_spec": {"method": "rule", "ground_truth": f"Answer {number}"},
            "extra_info": {"split": split, "index": number},
        }

    files = [tmp_path / f"{split}.parquet" for split in ("train", "validation")]
    for file, number in zip(files, (20, 5), strict=True):
        Dataset.from_list([example(file.stem, i) for i in range(number)]).to_parquet(file)
    allowed = {"my_env": frozenset({"string"})}
    assert check(*files, allowed_env_classes=allowed).num_accepted == 25
    assert [row for _, row in read_rows(files[1])] == [example("validation", i) for i in range(5)]


@pytest.mark.parametrize("field", ["prompt", "env_class", "reward_spec"])
@pytest.mark.parametrize("kind", FORMATS)
def test_required_field_is_required(field: str, kind: str, tmp_path: Path, check) -> None:
    path = write(
        tmp_path, kind, [GSM8K, {key: value for key, value in GSM8K.items() if key != field}]
    )
    with pytest.raises(DataError, match=rf":2 field {field}: missing"):
        check(path)


@pytest.mark.parametrize("field", ["data_source", "extra_info", "ability"])
@pytest.mark.parametrize("kind", FORMATS)
def test_optional_field_is_optional(field: str, kind: str, tmp_path: Path, check) -> None:
    row = {**GSM8K, "ability": "math"}
    path = write(tmp_path, kind, [row, {key: value for key, value in row.items() if key != field}])
    assert check(path).num_accepted == 2


@pytest.mark.parametrize(
    ("role", "good"),
    [("system", True), ("user", True), ("assistant", True), ("tool", False), ("User", False)],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_supported_roles_are_system_user_and_assistant(
    role: str, good: bool, kind: str, tmp_path: Path, check
) -> None:
    row = {**GSM8K, "prompt": [{"role": role, "content": "x"}, *GSM8K["prompt"]]}
    path = write(tmp_path, kind, [GSM8K, row])
    report = check(path, policy="drop", max_bad_fraction=1.0)
    assert report.rejected_by_reason == ({} if good else {"unknown role": 1})


def test_at_least_one_user_message(tmp_path: Path, check) -> None:
    path = write(
        tmp_path, "jsonl", [{**GSM8K, "prompt": [{"role": "system", "content": "x"}]}, GSM8K]
    )
    with pytest.raises(DataError, match=r"data\.jsonl:1 field prompt: no user message"):
        check(path)


@pytest.mark.parametrize(
    ("env_class", "ground_truth"),
    [
        ("gsm8k", "42"),
        ("gsm8k", 42.0),
        ("search", ["Paris", "paris", "PARIS"]),
        ("lcb", [{"input": "5", "output": "25"}, {"input": "10", "output": "100"}]),
    ],
    ids=["string", "number", "list", "test cases"],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_ground_truth_types(
    env_class: str, ground_truth: Any, kind: str, tmp_path: Path, check
) -> None:
    row = {
        **GSM8K,
        "env_class": env_class,
        "reward_spec": {"method": "rule", "ground_truth": ground_truth},
    }
    path = write(tmp_path, kind, [row])
    assert check(path).num_accepted == 1
    read = next(read_rows(path))[1]["reward_spec"]["ground_truth"]
    assert (read, type(read)) == (ground_truth, type(ground_truth))


@pytest.mark.parametrize("kind", FORMATS)
def test_env_class_matches_a_registered_environment(kind: str, tmp_path: Path, check) -> None:
    with pytest.raises(
        DataError,
        match=r"got 'gsm9k'; expected a registered environment \(did you mean 'gsm8k'\?\)",
    ):
        check(write(tmp_path, kind, [GSM8K, {**GSM8K, "env_class": "gsm9k"}]))


@pytest.mark.parametrize("kind", FORMATS)
def test_ground_truth_type_matches_what_the_environment_expects(
    kind: str, tmp_path: Path, check
) -> None:
    with pytest.raises(DataError, match="a string is not accepted by lcb"):
        check(write(tmp_path, kind, [GSM8K, {**GSM8K, "env_class": "lcb"}]))


def test_registered_environments_of_the_user_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_core.envs import accepted_ground_truths, register, registration
    from rl_core.envs.gsm8k import GSM8kEnv

    monkeypatch.setattr(registration, "_specs", {})
    register(id="my_env", entry_point=GSM8kEnv)
    path = write(tmp_path, "jsonl", [{**GSM8K, "env_class": "my_env"}])
    folders = {"rejects_dir": tmp_path / "rejects", "memo_dir": tmp_path / "memo"}
    assert (
        validate_files([path], allowed_env_classes=accepted_ground_truths(), **folders).num_accepted
        == 1
    )


def test_prompts_within_the_limit_are_kept_and_the_signature_is_skyrls(
    tmp_path: Path, tokenizer
) -> None:
    rows = [{**GSM8K, "prompt": [{"role": "user", "content": " ".join("1" * n)}]} for n in (3, 4)]
    path = write(tmp_path, "parquet by datasets", rows)
    dataset = PromptDataset(
        datasets=[str(path)],
        tokenizer=tokenizer,
        max_prompt_length=5,  # `user`, three words, `assistant`
        num_workers=8,
        prompt_key="prompt",
        env_class_key="env_class",
    )
    tokens = tokenizer.apply_chat_template(
        rows[0]["prompt"], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert len(tokens) == 5
    assert [item["prompt"] for item in dataset.items] == [rows[0]["prompt"]]
    assert dataset.num_dropped == 1


def test_batch_holds_prompt_env_class_env_extras_and_uid(tmp_path: Path, tokenizer) -> None:
    dataset = PromptDataset(
        [write(tmp_path, "jsonl", [{**TEXT2SQL, "max_turns": 5}])], tokenizer, 512
    )
    (item,) = dataset.collate_fn([dataset[0]])
    assert set(item) == {"prompt", "env_class", "env_extras", "uid"}
    assert item["prompt"] == TEXT2SQL["prompt"]
    assert item["env_class"] == "text2sql"
    assert item["env_extras"]["reward_spec"] == TEXT2SQL["reward_spec"]
    assert item["env_extras"]["max_turns"] == 5


@pytest.mark.parametrize(
    "row",
    [
        {**LCB, "reward_spec": {"ground_truth": json.dumps(LCB["reward_spec"]["ground_truth"])}},
        {**SEARCH, "reward_spec": {"ground_truth": {"target": ["Kansas City Chiefs", "Chiefs"]}}},
        {
            **{k: v for k, v in GSM8K.items() if k != "reward_spec"},
            "reward_model": {"ground_truth": "5", "style": "rule"},
        },
        {**TEXT2SQL, "db_id": "employees", "extra_info": {"split": "train"}},
        {**TEXT2SQL, "max_turns": 5, "extra_info": {"max_turns": 3}},
        {**GSM8K, "anything": {"else": [1, 2]}},
    ],
    ids=[
        "test cases as JSON",
        "target",
        "reward_model",
        "db_id at the top",
        "max_turns at the top",
        "any column",
    ],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_looser_shape_is_accepted(row: dict[str, Any], kind: str, tmp_path: Path, check) -> None:
    path = write(tmp_path, kind, [row])
    assert check(path).num_accepted == 1
    assert next(read_rows(path))[1] == row
