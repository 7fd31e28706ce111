"""Prompts that name a handwritten digit, in many wordings, for the embedded model
`embedded:tiny-sd3`.

A wording is an opening, a noun and an ending around the digit's name: a word, a figure, or a figure
in quotation marks, which is what the reward `ocr` looks for. Whole wordings are held out: every
piece of a held-out wording occurs in training, its combination does not.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from rl_core.builtin.data.reasoning_problems import belongs_to_eval
from rl_core.errors import DataError

NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
OPENINGS = ("", "a photo of", "a picture of", "a drawing of", "an image of", "a scan of")
NOUNS = ("", "the digit", "the number", "the numeral", "the figure")
ENDINGS = ("", ", handwritten", " written by hand", " in white ink", " on black paper")
EVAL_FRACTION = 0.2
"""Share of the wordings that is held out for evaluation."""


@dataclass(frozen=True)
class DigitPrompt:
    """A prompt and the digit that it names."""

    text: str
    digit: int
    is_quoted: bool = False


def wordings(split: str) -> list[str]:
    """Return the wordings of one split, `train` or `eval`, as templates with `{}` for the name."""
    every = [
        f"{opening} {noun} {{}}{ending}"
        for opening in OPENINGS
        for noun in NOUNS
        for ending in ENDINGS
    ]
    joined = [" ".join(wording.split()) for wording in every]
    return [
        wording
        for wording in joined
        if belongs_to_eval(wording, EVAL_FRACTION) == (split == "eval")
    ]


def digit_prompts(split: str) -> list[DigitPrompt]:
    """Return every prompt of a split: each wording with each name of each digit."""
    prompts = []
    for wording in wordings(split):
        for digit, word in enumerate(NAMES):
            prompts.append(DigitPrompt(wording.format(word), digit))
            prompts.append(DigitPrompt(wording.format(digit), digit))
            prompts.append(DigitPrompt(wording.format(f'"{digit}"'), digit, is_quoted=True))
    return prompts


def draw_prompts(split: str, count: int, seed: int, *, quoted: bool = False) -> list[DigitPrompt]:
    """Draw different prompts, every digit equally often.

    Args: quoted: only prompts with, or only those without quotation marks.
    Raises: DataError when the split has fewer such prompts than `count`.
    """
    known = [prompt for prompt in digit_prompts(split) if prompt.is_quoted == quoted]
    if count > len(known):
        raise DataError(
            f"digits: {count} prompts asked for, the split {split} has {len(known)}; lower the "
            "number"
        )
    rng = random.Random(f"digits {split} {seed}")
    by_digit: list[list[DigitPrompt]] = [[] for _ in NAMES]
    for prompt in known:
        by_digit[prompt.digit].append(prompt)
    for prompts in by_digit:
        rng.shuffle(prompts)
    return [by_digit[place % len(NAMES)][place // len(NAMES)] for place in range(count)]
