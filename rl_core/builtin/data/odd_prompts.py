"""Odd ways to ask for a digit, which a prompt enhancer has to understand before anything can be
drawn.

Every oddity has some hundred questions, each with one or two wordings. A question is held out in
all its wordings: a held-out sum, typing error or foreign word is never a prompt in training.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from rl_core.builtin.data.digit_prompts import NAMES
from rl_core.builtin.data.foreign_digits import FOREIGN
from rl_core.builtin.data.reasoning_problems import belongs_to_eval
from rl_core.errors import DataError

EVAL_FRACTION = 0.2
"""Share of the questions that is held out for evaluation."""
ROMAN = (
    "I",
    "II",
    "III",
    "IV",
    "V",
    "VI",
    "VII",
    "VIII",
    "IX",
    "X",
    "XI",
    "XII",
    "XIII",
    "XIV",
    "XV",
    "XVI",
    "XVII",
)
ROWS_OF_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


class Oddity(StrEnum):
    """Kind of oddity of a prompt."""

    LANGUAGE = "language"
    """The digit's name in another language: `siete`."""
    ROMAN = "roman"
    """Roman numerals, alone or in a calculation: `X - III`."""
    TYPO = "typo"
    """The English name with one typing error: `sevne`."""
    SUM = "sum"
    """A sum or difference of two or three numbers: `3 + 4`."""
    SEQUENCE = "sequence"
    """The beginning of a sequence whose next number is the digit: `1, 3, 5, ...`."""


@dataclass(frozen=True)
class OddPrompt:
    """A prompt and the digit that it means."""

    text: str
    digit: int
    oddity: Oddity


def odd_prompts(oddity: Oddity, split: str) -> list[OddPrompt]:
    """Return every prompt of one kind and split, `train` or `eval`."""
    questions, wordings = _QUESTIONS[oddity]
    prompts = []
    for text, digit in questions().items():
        if belongs_to_eval(text, EVAL_FRACTION) == (split == "eval"):
            prompts += [OddPrompt(wording.format(text), digit, oddity) for wording in wordings]
    return prompts


def meanings() -> list[tuple[str, int]]:
    """Return every question of both splits, without a wording, and the digit that it means: what a
    model may know that has read widely, before it is asked anything."""
    return [known for questions, _ in _QUESTIONS.values() for known in questions().items()]


def draw_odd_prompts(
    split: str, count: int, seed: int, oddities: Sequence[Oddity] = tuple(Oddity)
) -> list[OddPrompt]:
    """Draw different prompts, every kind equally often, and within a kind every digit, as far as
    there are enough.

    Raises: DataError when a kind has fewer prompts in the split than requested.
    """
    drawn = [_drawn(oddity, split, -(-count // len(oddities)), seed) for oddity in oddities]
    return [drawn[place % len(oddities)][place // len(oddities)] for place in range(count)]


def _drawn(oddity: Oddity, split: str, count: int, seed: int) -> list[OddPrompt]:
    """Draw one prompt of each digit per round, as long as the digit has any left."""
    known, rng = odd_prompts(oddity, split), random.Random(f"{oddity} {split} {seed}")
    if count > len(known):
        raise DataError(
            f"oddities: {count} prompts of the kind {oddity} asked for, the split {split} has "
            f"{len(known)}; lower the number"
        )
    rng.shuffle(known)
    rounds = [0] * len(NAMES)
    ranked = []
    for prompt in known:
        ranked.append((rounds[prompt.digit], prompt))
        rounds[prompt.digit] += 1
    return [prompt for _, prompt in sorted(ranked, key=lambda pair: pair[0])][:count]


def _languages() -> dict[str, int]:
    digits: dict[str, int] = {}
    for words in FOREIGN.values():
        for digit, word in enumerate(words):
            if word not in NAMES:
                digits[word] = digit
    return digits


def _romans() -> dict[str, int]:
    numbers = dict(enumerate(ROMAN, start=1))
    alone = {numeral: number for number, numeral in numbers.items() if number < len(NAMES)}
    sums = {f"{numbers[a]} + {numbers[b]}": a + b for a, b in product(numbers, numbers)}
    differences = {f"{numbers[a]} - {numbers[b]}": a - b for a, b in product(numbers, numbers)}
    return alone | _digits_alone(sums | differences)


def _typos() -> dict[str, int]:
    words = {word for words in FOREIGN.values() for word in words}
    meant: dict[str, set[int]] = {}
    for digit, name in enumerate(NAMES):
        for wrong in _misspelt(name):
            meant.setdefault(wrong, set()).add(digit)
    return {
        wrong: digits.pop()
        for wrong, digits in meant.items()
        if len(digits) == 1 and wrong not in words
    }


def _misspelt(name: str) -> Iterator[str]:
    """Yield misspellings: a letter left out, doubled, hit next to its key, or swapped with the
    next; never another digit's name."""
    for place, letter in enumerate(name):
        before, after = name[:place], name[place + 1 :]
        found = [before + after, before + 2 * letter + after]
        found += [before + other + after for other in _beside(letter)]
        if after and after[0] != letter:
            found.append(before + after[0] + letter + after[1:])
        yield from (wrong for wrong in found if wrong not in NAMES)


def _beside(letter: str) -> list[str]:
    row = next(keys for keys in ROWS_OF_KEYS if letter in keys)
    place = row.index(letter)
    return [row[other] for other in (place - 1, place + 1) if 0 <= other < len(row)]


def _sums() -> dict[str, int]:
    two = {f"{a} + {b}": a + b for a, b in product(range(10), repeat=2)}
    two |= {f"{a} - {b}": a - b for a, b in product(range(20), range(1, 20))}
    three = {f"{a} + {b} + {c}": a + b + c for a, b, c in product(range(1, 8), repeat=3)}
    return _digits_alone(two | three)


def _sequences() -> dict[str, int]:
    made: dict[str, int] = {}
    for following, step, length in product(
        range(len(NAMES)), (-4, -3, -2, -1, 1, 2, 3, 4), (3, 4, 5)
    ):
        terms = [following - step * back for back in range(length, 0, -1)]
        if min(terms) >= 0:
            made[", ".join(map(str, terms))] = following
    for one, other in product(range(len(NAMES)), repeat=2):
        if one != other:
            made[f"{one}, {other}, {one}, {other}"] = one
    return made


def _digits_alone(values: dict[str, int]) -> dict[str, int]:
    return {text: value for text, value in values.items() if 0 <= value < len(NAMES)}


_QUESTIONS = {
    Oddity.LANGUAGE: (_languages, ("{}", "the number {}")),
    Oddity.ROMAN: (_romans, ("{}", "the numeral {}")),
    Oddity.TYPO: (_typos, ("{}", "the number {}")),
    Oddity.SUM: (_sums, ("{}", "{} = ?")),
    Oddity.SEQUENCE: (_sequences, ("{}, ...", "what comes after {}")),
}
"""Questions of each kind with the digits that they mean, and their wordings."""
