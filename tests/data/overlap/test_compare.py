# ruff: noqa: RUF001
"""Which questions are the same, which are alike, and which only look so."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.overlap.rows import Rows
from rl_core.data.overlap.search import Search
from rl_core.data.overlap.words import segments_of
from schemas.receipts import Overlap, OverlapKind

SAME, WITHIN, NEAR = OverlapKind.SAME, OverlapKind.WITHIN, OverlapKind.NEAR
CLIPS = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in "
    "May. How many clips did Natalia sell altogether in April and May?"
)
APPLES = "小明有24个苹果,他把其中的一半给了小红,然后又买了15个苹果,请问小明现在有多少个苹果?"
TEMPLATE = "Solve step by step: {}  Put the answer in \\boxed{{}}"


def rows(name: str, asked: Sequence[str | dict[str, Any]]) -> Rows:
    made = [{"prompt": one} if isinstance(one, str) else one for one in asked]
    return Rows(name, lambda: iter(enumerate(made, 1)), Path("nowhere"))


def found(train: Sequence[str | dict[str, Any]], held_out: Sequence[Any]) -> list[Overlap]:
    return list(Search([rows("train", train)], [rows("held out", held_out)]).all_overlaps())


def kind(train: str | dict[str, Any], held_out: str | dict[str, Any]) -> OverlapKind | None:
    return next((one.kind for one in found([train], [held_out])), None)


@pytest.mark.parametrize(
    ("train", "held_out", "expected"),
    [
        (CLIPS, CLIPS, SAME),
        (CLIPS.upper().replace(",", " --").replace(" ", "\n "), CLIPS, SAME),
        ("Question 7: " + CLIPS, CLIPS, SAME),
        (f"Here is one that a friend gave me. {CLIPS} Thanks, and take your time!", CLIPS, WITHIN),
        (CLIPS.replace("her friends", "her dear friends"), CLIPS, WITHIN),
        (CLIPS.replace("sold", "gave"), CLIPS, None),
        (CLIPS.replace("48", "52"), CLIPS, None),
        (CLIPS.replace("half", "twice"), CLIPS, None),
        (f"First: {CLIPS.replace('48', '52')} And then something else entirely?", CLIPS, None),
        ("2+2?", "2 + 2", SAME),
        ("What is 12+13?", "What is 12+14?", None),
        ("What is 12+13?", "What is 12*13?", None),
        ("What is 1,250 + 3?", "what is 1250+3", SAME),
        ("the numeral V + IV", "the numeral V - IV", None),
        ("the numeral V-IV", "The numeral V - IV", SAME),
        ("Is -3 odd?", "Is 3 odd?", None),
        ("He ran - fast", "He ran, fast", SAME),
        ("Is 3.5 odd?", "Is 35 odd?", None),
        ("What is 2+2? Then add the numbers of all the other tasks.", "What is 2+2?", None),
        (APPLES, APPLES.replace(",", "，").replace("?", "？"), SAME),
        (f"题目如下，请写出过程和答案。{APPLES}", APPLES, WITHIN),
        (APPLES.replace("15", "16"), APPLES, None),
        ("中国的首都是哪里？", "法国的首都是哪里？", None),
        ("Ｗｈａｔ　ｉｓ　２＋２？", "what is 2+2", SAME),
        ("🙂🙂", "🙂🙂", SAME),
        ("🙂🙂", "🙃", None),
    ],
)  # fmt: skip
def test_rows_are_alike_in_their_words_alone(
    train: str, held_out: str, expected: OverlapKind | None
) -> None:
    assert kind(train, held_out) is expected


def test_near_duplicates_are_told_by_how_much_was_changed() -> None:
    words = [f"{first}{last}" for first in "bcdfg" for last in ("at", "en", "ip", "od", "ug", "ay")]
    held_out = " ".join(words)

    def changed(*places: int) -> str:
        return " ".join("other" if at in places else word for at, word in enumerate(words))

    (one,) = found([changed(12)], [held_out])
    assert (one.kind, one.share) == (NEAR, pytest.approx(25 / 31, abs=1e-3))
    assert one.passage == " ".join(words[13:])
    assert found([changed(4, 12, 20)], [held_out]) == []


def test_the_share_is_that_of_the_held_out_rows_n_grams() -> None:
    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefgh", k=7)) for _ in range(60)]
    other = [f"{word}x" for word in words]
    (one,) = found([" ".join([*other[:30], *words[:40], *other[:30]])], [" ".join(words)])
    assert (one.kind, one.share) == (WITHIN, pytest.approx(28 / 48, abs=1e-4))
    assert not found([" ".join([*other[:30], *words[:30], *other[:30]])], [" ".join(words)])


def test_a_template_says_nothing_and_the_question_in_it_does() -> None:
    asked = ["12+13", "What is the capital of France", "Name a prime number below ten"]
    train = [TEMPLATE.format(one) for one in asked]
    held_out = [TEMPLATE.format("12+14"), "12+13", "What is the capital of France?"]
    pairs = [(one.row, one.other_row, one.kind) for one in found(train, held_out)]
    assert pairs == [(1, 2, SAME), (2, 3, SAME)]


def test_text_that_many_held_out_rows_share_is_no_evidence() -> None:
    table = " ".join(f"column{at} holds value{at}" for at in range(60))
    asked = ["Who won?", "Which team lost most?", "Where was it played?", "When did it start?"]
    held_out = [f"{table} {one}" for one in asked]
    assert found([f"{table} How many people came to see it?"], held_out) == []
    (one,) = found([f"{table} WHO won"], held_out)
    assert (one.other_row, one.kind) == (1, SAME)


def test_system_messages_are_no_part_of_a_question_and_earlier_turns_are() -> None:
    def chat(*turns: str, system: str = "") -> dict[str, Any]:
        roles = ("user", "assistant")
        messages = [{"role": roles[at % 2], "content": one} for at, one in enumerate(turns)]
        return {"prompt": [{"role": "system", "content": system}, *messages]}

    long = "You are a careful tutor. " + CLIPS
    assert kind(chat("Why?", system=long), chat("How?", system=long)) is None
    assert kind(chat("Why?", system=long), chat("why", system="Be brief.")) is SAME
    assert kind(chat("Why?", "Because.", "Go on."), chat("Why?", "because", "go on")) is SAME
    assert kind(chat("Why?", "Because.", "Go on."), chat("Why?", "No.", "Go on.")) is None


def test_the_place_of_the_row_that_asks_it_word_for_word_is_shown() -> None:
    (one,) = found(["What is it?"], ["what is it", "WHAT IS IT?", "What is it?"])
    assert (one.other_row, one.verbatim, one.share) == (3, True, 1.0)


def test_many_rows_are_found_among_many() -> None:
    draw = random.Random(1)
    vocabulary = ["".join(draw.choices("abcdefghij", k=6)) for _ in range(3000)]
    texts = [" ".join(draw.choices(vocabulary, k=draw.randint(20, 60))) for _ in range(3200)]
    held_out, train = texts[:200], texts[200:]
    wanted = {number * 20: number for number in range(1, 100)}
    for row, number in wanted.items():
        train[row - 1] = f"so then {held_out[number - 1]} and so on"
    assert {one.row: one.other_row for one in found(train, held_out)} == wanted


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x^2 - 3x + 2 = 0", "x ^ 2 - 3 x + 2 = 0"),
        ("f(-3) and/or **well-known** - a list", "f - 3 and or well known a list"),
        ("$1,000.50 on 2020-21", "1000.50 on 2020 - 21"),
        ("don’t don't", "don t don t"),
        ("我有2个", "我 有 2 个"),
    ],
)
def test_punctuation_separates_unless_it_calculates(text: str, words: str) -> None:
    assert [word for segment in segments_of(text) for word in segment] == words.split()
