"""The environment `open_ended`, and the requests made for it."""

from pathlib import Path

import pytest

from rl_core.builtin.data.open_prompts import SentencesSpec, materialise_sentences, sentence_rows
from rl_core.envs import make
from rl_core.errors import DataError


def test_a_reply_ends_the_conversation_without_a_reward():
    row = sentence_rows(SentencesSpec(sentences=1))[0]
    env = make("open_ended", {}, row)
    step = env.step("Did you wind the clock?")
    assert (step["reward"], step["done"], step["observations"]) == (0.0, True, [])  # type: ignore[index]


def test_requests_repeat_and_the_splits_share_no_place(tmp_path: Path):
    train, again = (sentence_rows(SentencesSpec(sentences=176, seed=3)) for _ in range(2))
    held_out = sentence_rows(SentencesSpec(sentences=96, split="eval"))
    assert train == again
    assert len({str(row["prompt"]) for row in train}) == 176
    places = [{row["extra_info"]["place"] for row in rows} for rows in (train, held_out)]  # type: ignore[index]
    assert not places[0] & places[1]
    path = materialise_sentences(SentencesSpec(sentences=2), tmp_path)
    assert len(path.read_text().splitlines()) == 2
    with pytest.raises(DataError, match="there are 96 of the split eval"):
        sentence_rows(SentencesSpec(sentences=97, split="eval"))
