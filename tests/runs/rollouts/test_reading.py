"""Stored rollouts are found by what was asked for, in the order that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_core.errors import StorageError
from rl_core.runs.rollouts.reading import Order, Wanted, messages_of, select
from tests.runs.rollouts.stored import batch, store


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of two groups; the prompt `b` is in both."""
    steps = {
        1: batch(["a", "a", "b", "b"], ["apple", "pear", "plum", "fig"], [0.5, 0.0, -3.0, 1.0]),
        12: batch(["b", "b", "c", "c"], ["PLUM?", "kiwi", "line\nbreak", "nut"], [2.0, 0.0] * 2),
    }
    return store(tmp_path_factory.mktemp("run"), steps)


def replies(folder: Path, wanted: Wanted, *options: object) -> list[str]:
    return [row["response"] for row in select(folder, wanted, *options)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "order", "limit", "found"),
    [
        (Wanted(), Order.STEP, 3, ["apple", "pear", "plum"]),
        (Wanted(step=12), Order.STEP, None, ["PLUM?", "kiwi", "line\nbreak", "nut"]),
        (Wanted(grep="plum"), Order.STEP, None, ["plum", "PLUM?"]),
        (Wanted(grep="line\nBREAK"), Order.STEP, None, ["line\nbreak"]),
        (Wanted(grep="about c"), Order.STEP, None, ["line\nbreak", "nut"]),
        (Wanted(group="b", step=1), Order.STEP, None, ["plum", "fig"]),
        (Wanted(group="b"), Order.REWARD, 2, ["PLUM?", "fig"]),
        (Wanted(), Order.ADVANTAGE, 2, ["plum", "PLUM?"]),
        (Wanted(step=1), Order.LENGTH, None, ["fig", "plum", "pear", "apple"]),
        (Wanted(track="images"), Order.STEP, None, []),
    ],
)
def test_rows_are_found(
    folder: Path, wanted: Wanted, order: Order, limit: int | None, found: list[str]
):
    assert replies(folder, wanted, order, limit) == found


def test_a_conversation_is_the_prompt_and_then_the_turns(folder: Path):
    (row,) = select(folder, Wanted(grep="kiwi"))
    assert [(one["role"], one["content"]) for one in messages_of(row)] == [
        ("user", "asked about b"),
        ("assistant", "kiwi"),
    ]


def test_what_is_not_there_is_said(folder: Path, tmp_path: Path):
    with pytest.raises(StorageError, match=r"step 2 is not stored; there are 2 steps, 1 to 12"):
        select(folder, Wanted(step=2))
    with pytest.raises(StorageError, match=r"no rollouts are stored.*tracking\.rollouts: none"):
        select(tmp_path, Wanted())
    (tmp_path / "step-00001.parquet").write_bytes(b"nonsense")
    with pytest.raises(StorageError, match=r"step-00001\.parquet: not a readable file of rollouts"):
        select(tmp_path, Wanted())
