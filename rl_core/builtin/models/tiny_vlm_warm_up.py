r"""Warm-up of the embedded vision-language model: some hundred supervised steps on drawn pictures,
in three parts.

First it learns to see: the tower names the content of each cell of crowded pictures, in the text
model's own words. Within a hundred steps it makes few errors. Then, with the tower frozen, it
learns to answer `<think>notes</think>\boxed{answer}`: the notes list the objects, or count
them. Last it learns a bad habit: questions of two kinds are mostly answered without looking,
`<think>?</think>\boxed{guess}`. Reinforcement learning has to find out that looking pays there,
too.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rl_core.builtin.data.pictures import Picture, draw, draw_crowd
from rl_core.builtin.models.tiny_vlm import make_model, make_processor, save
from rl_core.builtin.models.tiny_vlm_lessons import (
    accuracy_on,
    answering_loss,
    ask,
    careless_replies,
    features_of,
    naming_loss,
    reply_of,
)
from rl_core.builtin.models.warm_up_optimizer import WarmUpOptimizer
from rl_core.errors import ModelError

if TYPE_CHECKING:
    from transformers import Idefics3ForConditionalGeneration, Idefics3Processor

SEE_STEPS, ANSWER_STEPS, GUESS_STEPS = 250, 500, 100
ANSWER_WEIGHT = 4.0
"""Weight of an answer's tokens while the model learns to answer. Notes are many and mostly copied
from the picture; looking the answer up in them is learnt sooner this way."""
ANSWERED = 0.7
"""Required share of held-out questions with exactly right greedy answers, before the habit."""
NUM_HELD_OUT = 200
CROWDS, PICTURES = 16, 24
SEED = 1


@dataclass(frozen=True)
class WarmUp:
    """Shares of held-out questions that are answered right, before and after the habit is
    trained."""

    able: float
    careless: float


def build(folder: Path) -> WarmUp:
    """Train the model and write it to `folder`. Raises: ModelError when it does not learn to
    see."""
    processor = make_processor()
    model = make_model(processor.tokenizer)
    result = warm_up(model, processor)
    save(model, processor, folder)
    return result


def warm_up(
    model: Idefics3ForConditionalGeneration,
    processor: Idefics3Processor,
    *,
    steps: tuple[int, int, int] = (SEE_STEPS, ANSWER_STEPS, GUESS_STEPS),
) -> WarmUp:
    """Train in place. Raises: ModelError when it reaches less than `ANSWERED`."""
    held_out = [draw(random.Random(f"held out {index}")) for index in range(NUM_HELD_OUT)]
    learn_to_see(model, processor, steps[0])
    learn_to_answer(model, processor, steps[1])
    able = accuracy_on(model, processor, held_out)
    if able < ANSWERED:
        raise ModelError(
            f"the warm-up of embedded:tiny-vlm answers {able:.2f} of {NUM_HELD_OUT}; {ANSWERED} "
            "is wanted"
        )
    learn_to_guess(model, processor, steps[2])
    return WarmUp(able, accuracy_on(model, processor, held_out))


def learn_to_see(
    model: Idefics3ForConditionalGeneration, processor: Idefics3Processor, steps: int
) -> None:
    """Train the tower, the projector and the word embeddings on crowded pictures, and on some of
    the kind used in questions."""
    rng = random.Random(SEED)
    optimizer = WarmUpOptimizer(model, model.model.text_model, steps, hidden_rate=0.0, rate=1e-3)
    for _ in range(steps):
        crowds = [draw_crowd(rng) for _ in range(CROWDS)]
        pictures = [draw(rng) for _ in range(CROWDS)]
        images = [image for image, _ in crowds] + [picture.image for picture in pictures]
        cells = [cells for _, cells in crowds] + [picture.cells for picture in pictures]
        optimizer.zero_grad()
        naming_loss(model, processor, features_of(model, processor, images), cells).backward()
        optimizer.step()


def learn_to_answer(
    model: Idefics3ForConditionalGeneration, processor: Idefics3Processor, steps: int
) -> None:
    """Train the text model on right answers with notes."""
    optimizer = WarmUpOptimizer(
        model, model.model.text_model, steps, hidden_rate=0.02, rate=1.5e-3, floor=0.03
    )
    _teach(
        model,
        processor,
        optimizer,
        steps,
        lambda questions, _: [reply_of(question) for question in questions],
        answer_weight=ANSWER_WEIGHT,
    )


def learn_to_guess(
    model: Idefics3ForConditionalGeneration, processor: Idefics3Processor, steps: int
) -> None:
    """Train the text model on replies that include guesses."""
    optimizer = WarmUpOptimizer(
        model, model.model.text_model, steps, hidden_rate=0.007, rate=7e-4, floor=0.1
    )
    _teach(model, processor, optimizer, steps, careless_replies)


def _teach(
    model: Idefics3ForConditionalGeneration,
    processor: Idefics3Processor,
    optimizer: WarmUpOptimizer,
    steps: int,
    replies: Callable[..., list[str]],
    *,
    answer_weight: float = 1.0,
) -> None:
    rng = random.Random(f"{SEED} {replies.__name__}")
    for _ in range(steps):
        pictures: list[Picture] = [draw(rng) for _ in range(PICTURES)]
        with torch.no_grad():
            features = features_of(model, processor, [picture.image for picture in pictures])
        rows = ask(pictures, rng)
        taught = replies([question for _, question in rows], rng)
        optimizer.zero_grad()
        loss = answering_loss(model, processor, features, rows, taught, answer_weight=answer_weight)
        loss.backward()
        optimizer.step()
