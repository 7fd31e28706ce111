"""Held-out rows are never trained on."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data.overlap.found import REASON
from rl_core.data.overlap.questions import question_of
from rl_core.data.prepare.prompts import PreparationSettings, load_prepared, prepare_cache
from rl_core.errors import DataError
from schemas.receipts import ValidationReport
from tests.data.validation import validate_files


def message(text: str, role: str = "user") -> dict[str, str]:
    return {"role": role, "content": text}


def check(
    tmp_path: Path, allowed: Any, train: list[Path], held_out: list[Path], **options: Any
) -> ValidationReport:
    folders = {"rejects_dir": tmp_path / "rejects", "memo_dir": tmp_path / "memo"}
    return validate_files(
        train, held_out=held_out, allowed_env_classes=allowed, **folders, **options
    )


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_training_row_that_asks_a_held_out_question_is_refused_by_name(
    kind: str, tmp_path: Path, jsonl, good_row, allowed
) -> None:
    rows = [
        good_row("1 1"),
        good_row("2 2"),
        good_row("3 3", prompt=[message("be brief", "system"), message(" 4 4\n")]),
    ]
    train = jsonl("train.jsonl", rows)
    if kind == "parquet":
        train = tmp_path / "train.parquet"
        pq.write_table(pa.Table.from_pylist(rows), train)
    held_out = jsonl(
        "eval.jsonl", [good_row("9"), good_row("2 2", "other answer"), good_row("4 4")]
    )
    with pytest.raises(DataError, match="2 of 6 rows are refused") as caught:
        check(tmp_path, allowed, [train], [held_out])
    assert f"{train}:2 field prompt: {REASON}" in str(caught.value)
    assert f"{held_out}:2" in str(caught.value) and f"{held_out}:3" in str(caught.value)


def test_policy_drop_counts_them_and_preparation_leaves_them_out(
    tmp_path: Path, jsonl, good_row, allowed, tokenizer
) -> None:
    train = jsonl("train.jsonl", [good_row("1 1"), good_row("2 2"), good_row("3 3")])
    held_out = jsonl("eval.jsonl", [good_row("2 2")])
    policy: dict[str, Any] = {"policy": "drop", "max_bad_fraction": 0.5}
    report = check(tmp_path, allowed, [train], [held_out], **policy)
    assert report.rejected_by_reason == {REASON: 1}
    receipt = prepare_cache(
        [train],
        [held_out],
        PreparationSettings(
            name="a",
            tokenizer_id="tiny",
            max_prompt_length=100,
            cache_root=tmp_path / "cache",
            memo_dir=tmp_path / "memo",
            allowed_env_classes=allowed,
            **policy,
        ),
        tokenizer=tokenizer,
    )
    prompts = [
        item["prompt"][0]["content"] for item in load_prepared(Path(receipt.path) / "train.parquet")
    ]
    assert prompts == ["1 1", "3 3"]
    assert receipt.num_eval_rows == 1


def test_preparation_alone_refuses_them_too(
    tmp_path: Path, jsonl, good_row, allowed, tokenizer
) -> None:
    path = jsonl("rows.jsonl", [good_row("1 1")])
    with pytest.raises(DataError, match=REASON):
        prepare_cache(
            [path],
            [path],
            PreparationSettings(
                name="a",
                tokenizer_id="tiny",
                max_prompt_length=100,
                cache_root=tmp_path / "cache",
                memo_dir=tmp_path / "memo",
                allowed_env_classes=allowed,
            ),
            tokenizer=tokenizer,
        )


def test_questions_differ_by_text_role_and_media_and_not_by_system_message() -> None:
    ask = question_of({"prompt": [message("a")]})
    assert (
        ask
        == question_of({"prompt": [message("s", "system"), message(" a\n")]})
        == question_of({"prompt": "a"})
    )
    assert ask != question_of({"prompt": [message("a", "assistant")]})
    assert ask != question_of({"prompt": [message("a"), message("b")]})
    snow = [{"prompt": "snow", "media_refs": [{"uri": uri}]} for uri in ("a.png", "b.png")]
    assert question_of(snow[0]) != question_of(snow[1])
    pictures = [{"prompt": "what?", "images": [{"bytes": content}]} for content in (b"1", b"2")]
    assert question_of(pictures[0]) != question_of(pictures[1])
