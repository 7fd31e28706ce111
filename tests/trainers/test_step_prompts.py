"""Prompts of a step: each rank that samples has about as much to read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_core.trainers.step_prompts import StepPrompts
from tests.rollout.vowels import recipe

TEXTS = ["a" * 4000, "b" * 3000, "c" * 200, "d" * 100]


class Source:
    """Gives the same rows in each step."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def next_batch(self) -> list[Any]:
        return self.rows

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        pass


def order(model_dir: Path, rows: list[dict[str, Any]], **placement: int) -> str:
    """Letters of the rows as ranks get them."""
    placed = {"threads_per_device": 1, "micro_batch_size": 8} | placement
    settings = recipe(model_dir, dedicated="rollout_devices" in placed, placement=placed)
    prompts = StepPrompts(settings, Source(rows)).next(0)
    return "".join(item["uid"] for item in prompts.non_tensor_batch["item"])


def said(text: str) -> dict[str, Any]:
    return {"uid": text[0], "prompt": [{"role": "user", "content": text}]}


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        ({"num_devices": 2}, "adbc"),
        ({"num_devices": 3, "rollout_devices": 2}, "adbc"),
        ({"num_devices": 1}, "abcd"),
        ({"num_devices": 2, "tp_size": 2}, "abcd"),
        ({"num_devices": 3, "rollout_devices": 1}, "abcd"),
    ],
)
def test_long_prompts_go_to_different_ranks(
    tiny_model_dir: Path, placement: dict[str, int], expected: str
):
    assert order(tiny_model_dir, [said(text) for text in TEXTS], **placement) == expected


def test_rows_of_equal_length_stay_in_their_order(tiny_model_dir: Path):
    rows = [said(letter * 50) for letter in "dacb"]
    assert order(tiny_model_dir, rows, num_devices=2) == "dacb"


def test_pictures_and_answers_count(tiny_model_dir: Path):
    seen = said("s") | {"media_refs": [{"uri": "one.png"}] * 3}
    long = said("l") | {"chosen": "x" * 3000, "rejected": ""}
    rows = [seen, long, said("a"), said("b")]
    assert order(tiny_model_dir, rows, num_devices=2) == "sbla"
