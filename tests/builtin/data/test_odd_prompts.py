"""Prompts that mean a digit in an odd way: what they mean, that they differ, and what is held
out."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from rl_core.builtin.data.digit_prompts import NAMES
from rl_core.builtin.data.foreign_digits import FOREIGN
from rl_core.builtin.data.odd_prompts import Oddity, draw_odd_prompts, meanings, odd_prompts
from rl_core.builtin.data.prompt_files import OdditiesSpec, made_spec, materialise_prompts
from rl_core.errors import DataError

ROMAN = {"I": 1, "V": 5, "X": 10}


def value_of(numeral: str) -> int:
    """Read letter by letter: one before a larger one is taken away."""
    worths = [ROMAN[letter] for letter in numeral]
    return sum(-one if one < max(worths[place:]) else one for place, one in enumerate(worths))


@pytest.mark.parametrize("oddity", Oddity)
def test_there_are_some_hundred_of_each_kind_and_the_held_out_ones_are_apart(oddity: Oddity):
    train, held_out = odd_prompts(oddity, "train"), odd_prompts(oddity, "eval")
    assert len(train) >= 250
    assert len(held_out) >= 60
    questions = [
        {prompt.text.removeprefix("the number ") for prompt in split} for split in (train, held_out)
    ]
    assert not questions[0] & questions[1]
    assert {prompt.digit for prompt in train} == set(range(10))


def test_meanings_are_the_questions_of_both_splits_without_a_wording():
    known = dict(meanings())
    assert len(known) == len(meanings())
    asked = [
        prompt for split in ("train", "eval") for prompt in odd_prompts(Oddity.LANGUAGE, split)
    ]
    for prompt in asked:
        assert known[prompt.text.removeprefix("the number ")] == prompt.digit
    assert not any(text.startswith(("the n", "what")) or text.endswith("?") for text in known)


def test_no_text_means_two_digits():
    meant: dict[str, set[int]] = {}
    for oddity in Oddity:
        for split in ("train", "eval"):
            for prompt in odd_prompts(oddity, split):
                meant.setdefault(prompt.text, set()).add(prompt.digit)
    assert [text for text, digits in meant.items() if len(digits) > 1] == []


def test_sums_and_numerals_mean_what_they_come_to():
    for prompt in odd_prompts(Oddity.SUM, "train"):
        assert eval(prompt.text.removesuffix(" = ?")) == prompt.digit
    for prompt in odd_prompts(Oddity.ROMAN, "train"):
        words = prompt.text.removeprefix("the numeral ").split()
        signed = [
            value_of(words[place]) * (-1 if place and words[place - 1] == "-" else 1)
            for place in (0, 2)[: len(words)]
        ]
        assert sum(signed) == prompt.digit, prompt.text


def test_a_sequence_goes_on_with_its_digit():
    for prompt in odd_prompts(Oddity.SEQUENCE, "eval"):
        listed = prompt.text.removesuffix(", ...").removeprefix("what comes after ")
        terms = [*map(int, listed.split(", ")), prompt.digit]
        steps = {after - before for before, after in pairwise(terms)}
        assert len(steps) == 1 or terms[::2] == terms[:1] * len(terms[::2])


def test_typing_errors_are_near_their_word_and_languages_have_ten_digits():
    for prompt in odd_prompts(Oddity.TYPO, "train"):
        assert abs(len(prompt.text.removeprefix("the number ")) - len(NAMES[prompt.digit])) <= 1
    assert all(len(words) == len(NAMES) for words in FOREIGN.values())


def test_kinds_and_digits_are_drawn_evenly_and_by_seed():
    drawn = draw_odd_prompts("train", 500, seed=1)
    assert len({prompt.text for prompt in drawn}) == 500
    assert set(Counter(prompt.oddity for prompt in drawn).values()) == {100}
    assert min(Counter(prompt.digit for prompt in drawn).values()) >= 30
    assert drawn == draw_odd_prompts("train", 500, seed=1)
    assert drawn != draw_odd_prompts("train", 500, seed=2)
    with pytest.raises(
        DataError, match=r"oddities: 9000 prompts of the kind typo asked for, the split eval has"
    ):
        draw_odd_prompts("eval", 9000, seed=1, oddities=[Oddity.TYPO])


def test_a_block_of_a_recipe_becomes_prompt_rows(tmp_path: Path):
    entry = {"oddities": 12, "seed": 3, "kinds": ["sum", "roman"]}
    kind = made_spec(entry)
    assert kind is OdditiesSpec
    path = materialise_prompts(kind(**entry), tmp_path)
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert path.name.startswith("oddities-train-")
    assert [row["metadata"]["kind"] for row in rows] == ["sum", "roman"] * 6
    assert len({row["prompt_id"] for row in rows}) == 12
