"""Pairs of replies: what tells them apart is no length, and their questions make prompts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_core.builtin.data.courteous_replies import COURTEOUS, courteous_replies
from rl_core.builtin.data.pair_questions import PairQuestionsSpec, materialise_pair_questions
from rl_core.errors import DataError


def test_the_longer_reply_is_chosen_in_half_of_the_pairs() -> None:
    rows = courteous_replies(800, seed=1)
    assert len({row["question"] for row in rows}) == 800
    longer = sum(len(row["chosen"]) > len(row["rejected"]) for row in rows) / len(rows)
    assert 0.45 < longer < 0.55
    for row in rows:
        is_courteous = [any(words in row[side] for words in COURTEOUS) for side in row]
        assert is_courteous == [False, True, False]
    with pytest.raises(DataError, match="more than the"):
        courteous_replies(10_000, seed=1)


def test_questions_of_the_splits_differ(tmp_path: Path) -> None:
    asked = []
    for split in ("train", "eval"):
        spec = PairQuestionsSpec(fixture="courtesy", num_rows=60, seed=3, split=split, size=40)  # type: ignore[arg-type]
        path = materialise_pair_questions(spec, tmp_path)
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        assert all(row["env_class"] == "open_ended" for row in rows)
        asked.append({row["prompt"][0]["content"] for row in rows})
    assert len(asked[0]) == 40 and asked[1] and not asked[0] & asked[1]
