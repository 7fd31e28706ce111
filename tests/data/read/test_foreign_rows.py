"""Rows as verl, TRL, OpenAI, ShareGPT, Alpaca and MMPR write them, as rows of this project."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rl_core.data import read_rows
from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.data.read.convert import Conversion, convert_file
from rl_core.data.read.foreign_rows import RowFormat
from rl_core.envs import accepted_ground_truths
from rl_core.errors import DataError
from schemas.rows.column_map import ColumnMap
from schemas.rows.contract import SchemaName

QUESTION = [{"role": "user", "content": "2 + 2?"}]
ASKED = {"prompt": QUESTION, "reward_spec": {"method": "rule", "ground_truth": "4"}}
VERL: dict[str, Any] = {
    "data_source": "openai/gsm8k",
    "prompt": QUESTION,
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "4"},
    "extra_info": {"split": "train", "index": 0},
}
PAIR = {"question": "2 + 2?", "chosen": "4", "rejected": "5"}


def written(tmp_path: Path, row: dict[str, Any]) -> Path:
    path = tmp_path / "theirs.jsonl"
    path.write_text(json.dumps(row) + "\n", encoding="utf-8")
    return path


def converted(
    tmp_path: Path, row: dict[str, Any], kind: RowFormat, **options: Any
) -> dict[str, Any]:
    to = options.pop("to", SchemaName.PROMPT)
    env_class = "gsm8k" if to is SchemaName.PROMPT else None
    target = tmp_path / "ours.jsonl"
    how = Conversion(to, kind, env_class=env_class, **options)
    assert convert_file(written(tmp_path, row), target, how) == 1
    settings = CheckSettings(accepted_ground_truths(), schema=to, texts_alone=True)
    report = check_files([target], settings, rejects_dir=tmp_path / "r", memo_dir=tmp_path / "m")
    assert report.num_rejected == 0
    return json.loads(target.read_text())


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (RowFormat.TRL, {"prompt": "2 + 2?", "ground_truth": "4"}),
        (RowFormat.TRL, {"prompt": QUESTION, "solution": "4"}),
        (RowFormat.TRL, {"prompt": "2 + 2?", "completion": "4"}),
        (
            RowFormat.TRL,
            {"prompt": QUESTION, "completion": [{"role": "assistant", "content": "4"}]},
        ),
        (RowFormat.OPENAI, {"messages": [*QUESTION, {"role": "assistant", "content": "4"}]}),
        (
            RowFormat.OPENAI,
            {
                "messages": [{"role": "user", "content": [{"type": "text", "text": "2 + 2?"}]}],
                "answer": "4",
            },
        ),
        (
            RowFormat.SHAREGPT,
            {
                "conversations": [
                    {"from": "human", "value": "2 + 2?"},
                    {"from": "gpt", "value": "4"},
                ]
            },
        ),
        (RowFormat.ALPACA, {"instruction": "2 + 2?", "input": "", "output": "4"}),
        (RowFormat.VERL, VERL),
        (
            RowFormat.VERL,
            {name: json.dumps(v) if name != "ability" else v for name, v in VERL.items()},
        ),
        (RowFormat.MMPR, VERL),
    ],
)
def test_a_question_with_its_answer_becomes_a_prompt_row(
    kind: RowFormat, row: dict[str, Any], tmp_path: Path
):
    made = converted(tmp_path, row, kind)
    assert made["env_class"] == "gsm8k"
    assert made["prompt"] == ASKED["prompt"]
    assert made["reward_spec"]["ground_truth"] == "4"


def test_verls_columns_stay(tmp_path: Path):
    made = converted(tmp_path, VERL, RowFormat.VERL)
    kept = {name: value for name, value in VERL.items() if name != "reward_model"}
    assert made == {**kept, "reward_spec": VERL["reward_model"], "env_class": "gsm8k"}


def test_verls_parquet_is_read_as_pandas_writes_it(tmp_path: Path):
    frame = pd.DataFrame([{**VERL, "prompt": np.array(QUESTION, dtype=object)} for _ in range(3)])
    frame.to_parquet(tmp_path / "train.parquet")
    target = tmp_path / "ours.parquet"
    how = Conversion(SchemaName.PROMPT, RowFormat.VERL, env_class="gsm8k")
    assert convert_file(tmp_path / "train.parquet", target, how) == 3
    assert all(row["reward_spec"] == VERL["reward_model"] for _, row in read_rows(target))


def test_mmpr_tinys_pictures_travel_in_parquet(tmp_path: Path, png: bytes):
    row = {**VERL, "images": [{"bytes": png, "path": "a.png"}]}
    pd.DataFrame([row]).to_parquet(tmp_path / "tiny.parquet")
    how = Conversion(SchemaName.PROMPT, RowFormat.MMPR, env_class="gsm8k")
    assert convert_file(tmp_path / "tiny.parquet", tmp_path / "ours.parquet", how) == 1
    ((_, made),) = read_rows(tmp_path / "ours.parquet")
    assert made["images"] == row["images"]


def test_a_system_message_is_kept(tmp_path: Path):
    roles = [("developer", "Be brief."), ("user", "2 + 2?"), ("assistant", "4")]
    row = {"messages": [{"role": role, "content": text} for role, text in roles]}
    assert converted(tmp_path, row, RowFormat.OPENAI)["prompt"] == [
        {"role": "system", "content": "Be brief."},
        *QUESTION,
    ]


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (RowFormat.TRL, {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}),
        (
            RowFormat.TRL,
            {
                name: [*QUESTION, {"role": "assistant", "content": PAIR[name]}]
                for name in ("chosen", "rejected")
            },
        ),
        (RowFormat.MMPR, PAIR),
    ],
)
def test_two_answers_become_a_preference_row(kind: RowFormat, row: dict[str, Any], tmp_path: Path):
    assert converted(tmp_path, row, kind, to=SchemaName.PREFERENCE) == PAIR


def test_a_mapping_goes_over_what_a_format_says(tmp_path: Path):
    row = {"prompt": "2 + 2?", "label": "It is #### 4"}
    mapping = ColumnMap({"ground_truth": "label|after:####"})
    made = converted(tmp_path, row, RowFormat.TRL, mapping=mapping)
    assert made["reward_spec"] == {"ground_truth": "4"}


@pytest.mark.parametrize(
    ("kind", "row", "to", "said"),
    [
        (RowFormat.TRL, {"prompt": "x"}, SchemaName.PROMPT, "field reward_spec: missing"),
        (
            RowFormat.TRL,
            {"prompt": 3},
            SchemaName.PROMPT,
            "field prompt: expected a text, or a list of messages",
        ),
        (
            RowFormat.TRL,
            {"prompt": "x", **{name: PAIR[name] for name in ("chosen", "rejected")}},
            SchemaName.PROMPT,
            "a preference row cannot become a prompt row, since it holds two answers: use --to",
        ),
        (
            RowFormat.TRL,
            {
                "chosen": [*QUESTION, {"role": "assistant", "content": "4"}],
                "rejected": [
                    {"role": "user", "content": "3 + 3?"},
                    {"role": "assistant", "content": "5"},
                ],
            },
            SchemaName.PREFERENCE,
            "field rejected: answers another prompt than chosen",
        ),
        (
            RowFormat.OPENAI,
            {"messages": [*QUESTION, {"role": "tool", "content": "x"}]},
            SchemaName.PROMPT,
            r"field messages\[1\]\.role: 'tool' has no place in a prompt row",
        ),
        (
            RowFormat.OPENAI,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            SchemaName.PROMPT,
            r"field messages\[0\]\.content: expected a text or parts of type text",
        ),
        (
            RowFormat.SHAREGPT,
            {"conversations": [{"from": "narrator", "value": "x"}]},
            SchemaName.PROMPT,
            r"field conversations\[0\]\.from: unknown speaker 'narrator'",
        ),
        (
            RowFormat.ALPACA,
            {"output": "4"},
            SchemaName.PROMPT,
            "field instruction: expected a text, got None",
        ),
        (
            RowFormat.VERL,
            {**VERL, "reward_model": "{4"},
            SchemaName.PROMPT,
            "field reward_model: expected an object, or one as JSON",
        ),
    ],
)
def test_what_has_no_place_is_named_and_nothing_is_written(
    kind: RowFormat, row: dict[str, Any], to: SchemaName, said: str, tmp_path: Path
):
    target = tmp_path / "ours.jsonl"
    with pytest.raises(DataError, match=rf"theirs\.jsonl:1:? ?.*{said}"):
        env_class = "gsm8k" if to is SchemaName.PROMPT else None
        convert_file(written(tmp_path, row), target, Conversion(to, kind, env_class=env_class))
    assert not target.exists()
