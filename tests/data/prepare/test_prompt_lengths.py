"""Properties of the token counts of prompts."""

from pathlib import Path
from typing import Any

import pytest

from rl_core.data.prepare import prompt_lengths
from rl_core.data.prepare.prompt_lengths import LengthCounter
from rl_core.errors import DataError


def items(num: int) -> tuple[list[dict[str, Any]], list[str]]:
    rows = [
        {"prompt": [{"role": "user", "content": " ".join("1" * (i % 7 + 1))}]} for i in range(num)
    ]
    return rows, [f"f:{i}" for i in range(num)]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batched_counts_equal_the_template_of_each_row(
    num_workers: int, tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_lengths, "BATCH", 16)
    rows, places = items(100)
    one_by_one = [
        len(
            tokenizer.apply_chat_template(
                row["prompt"], add_generation_prompt=True, tokenize=True, return_dict=False
            )
        )
        for row in rows
    ]
    assert LengthCounter(tokenizer, num_workers=num_workers).lengths(rows, places) == one_by_one


def test_counts_are_remembered_by_content(
    tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_lengths, "BATCH", 16)
    rows, places = items(64)
    first = LengthCounter(tokenizer, cache_dir=tmp_path)
    lengths = first.lengths(rows, places)
    assert first.num_counted == 64
    again = LengthCounter(tokenizer, cache_dir=tmp_path)
    assert again.lengths(rows, ["elsewhere"] * 64) == lengths
    assert again.num_counted == 0
    grown = LengthCounter(tokenizer, cache_dir=tmp_path)
    grown.lengths(rows + items(5)[0], [*places, *"abcde"])
    assert grown.num_counted == 5


def test_other_template_or_arguments_are_counted_anew(tokenizer, tmp_path: Path) -> None:
    rows, places = items(8)
    LengthCounter(tokenizer, cache_dir=tmp_path).lengths(rows, places)
    kwargs = LengthCounter(tokenizer, {"x": 1}, cache_dir=tmp_path)
    kwargs.lengths(rows, places)
    template, tokenizer.chat_template = tokenizer.chat_template, "user {{ messages[0]['content'] }}"
    try:
        other = LengthCounter(tokenizer, cache_dir=tmp_path)
        assert other.lengths(rows, places) == [i % 7 + 2 for i in range(8)]
    finally:
        tokenizer.chat_template = template
    assert kwargs.num_counted == other.num_counted == 8


def test_damaged_cache_is_counted_anew(tokenizer, tmp_path: Path) -> None:
    rows, places = items(8)
    lengths = LengthCounter(tokenizer, cache_dir=tmp_path).lengths(rows, places)
    (file,) = tmp_path.rglob("*.npy")
    for content in (b"", b"nonsense", file.read_bytes()[:-4]):
        file.write_bytes(content)
        assert LengthCounter(tokenizer, cache_dir=tmp_path).lengths(rows, places) == lengths


def test_refusal_of_the_template_names_the_row(tokenizer) -> None:
    rows, places = items(8)
    rows[5]["prompt"].insert(0, {"role": "system", "content": "x"})
    with pytest.raises(DataError, match=r"f:5 field prompt: .*chat template refuses it: no system"):
        LengthCounter(tokenizer, {"no_system": True}).lengths(rows, places)
