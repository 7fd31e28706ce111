"""Warm-up of the embedded unified model: supervised training until plans are mostly vague and half
of the pictures legible.

First the decoder learns by cross-entropy to write the plan of an odd prompt
(`rl_core.builtin.data.odd_prompts`, split `train`), beside a dictionary of all that prompts ask
("siete means seven"), as a language model has read most words before it is asked for one: what is
held out are the prompts, not the words. When it is good enough, it learns a bad habit, plans that
name no digit, while decoder and transformer learn flow matching (as
`rl_core.builtin.models.tiny_sd3_warm_up`) on plans of *any* prompt: the picture shows what was
planned, right or wrong, and anything after a vague plan. Training ends when the pictures are good
enough. Reinforcement learning has to find out that naming a digit pays, and to draw it better.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rl_core.builtin.data.digit_prompts import NAMES
from rl_core.builtin.data.odd_prompts import (
    Oddity,
    OddPrompt,
    draw_odd_prompts,
    meanings,
    odd_prompts,
)
from rl_core.builtin.models.tiny_sd3_warm_up import Digits, load
from rl_core.builtin.models.tiny_unified import PLAN, make_pipeline
from rl_core.builtin.models.warm_up_optimizer import WarmUpOptimizer
from rl_core.errors import ModelError
from rl_core.models.chat.tokenizer import encode_chat
from rl_core.models.diffusion.base import Condition
from rl_core.models.unified.compact import CONTEXT, ROWS, CompactUnified

if TYPE_CHECKING:
    from rl_core.models.unified.pipeline import CompactUnifiedPipeline

VAGUE, VAGUE_DRAWN = 0.6, 0.2
"""Shares of vague plans: among those that are written, and among those that are drawn."""
PLANNED, DRAWN = 0.6, 0.5
"""Required mean probabilities: of the right plan before the habit, and of the planned digit by the
judge `network`."""
PLAN_STEPS, MAX_DRAW_STEPS = 300, 400
CHECK_EVERY = 25
NUM_JUDGED = 100
JUDGED_STEPS = 10
"""Denoising steps of the judged samples."""
PLANS, MEANINGS, PICTURES = 64, 64, 64
SEED = 1
MEANING = "{} means {}"
"""Text of an entry of the dictionary, with `{}` for the question and the digit's name."""


Planned = tuple[OddPrompt, int | None]
"""A prompt, and the digit planned for it; None is a vague plan."""


@dataclass(frozen=True)
class WarmUp:
    """Mean probabilities of the right plan before and after the habit, and of the planned digit."""

    able: float
    careless: float
    drawn: float


def build(folder: Path) -> WarmUp:
    """Train the pipeline and write it to `folder`. Raises: ModelError when it does not learn to
    plan and to draw."""
    pipeline = make_pipeline()
    result = warm_up(pipeline)
    pipeline.save_pretrained(folder)
    return result


def warm_up(
    pipeline: CompactUnifiedPipeline,
    *,
    plan_steps: int = PLAN_STEPS,
    max_draw_steps: int = MAX_DRAW_STEPS,
) -> WarmUp:
    """Train in place. Raises: ModelError when it reaches less than `PLANNED` or `DRAWN`."""
    family, rng = CompactUnified(pipeline), random.Random(SEED)
    judged = draw_odd_prompts("train", NUM_JUDGED, SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        learn_to_plan(family, plan_steps, rng)
        able = planned_probability(family, judged)
        if able < PLANNED:
            raise ModelError(
                f"the warm-up of embedded:tiny-unified plans {able:.2f} right; {PLANNED} is wanted"
            )
        drawn = learn_to_draw(family, max_draw_steps, rng, judged)
    return WarmUp(able, planned_probability(family, judged), drawn)


def learn_to_plan(family: CompactUnified, steps: int, rng: random.Random) -> None:
    """Train the decoder on right plans and on the dictionary."""
    parts, known, dictionary = family.transformer, _known(), meanings()
    optimizer = WarmUpOptimizer(
        parts.decoder, parts.decoder, steps, hidden_rate=0.02, rate=2e-3, floor=0.05
    )
    for _ in range(steps):
        optimizer.zero_grad()
        plan_loss(family, rng.choices(known, k=PLANS), rng, vague=0.0).backward()
        meaning_loss(family, rng.choices(dictionary, k=MEANINGS)).backward()
        optimizer.step()


def learn_to_draw(
    family: CompactUnified, max_steps: int, rng: random.Random, judged: Sequence[OddPrompt]
) -> float:
    """Train both parts on digits as planned, and the decoder on mostly vague plans and on the
    dictionary.

    Returns: the probability of the planned digits. Raises: ModelError when it stays below `DRAWN`.
    """
    parts, known, digits = family.transformer, _known(), load(family.pipeline)
    dictionary = meanings()
    optimizer = WarmUpOptimizer(parts, parts, max_steps, hidden_rate=0.02, rate=2e-3)
    drawn = 0.0
    for step in range(1, max_steps + 1):
        optimizer.zero_grad()
        plan_loss(family, rng.choices(known, k=PLANS), rng, vague=VAGUE).backward()
        meaning_loss(family, rng.choices(dictionary, k=MEANINGS)).backward()
        flow_loss(family, digits, known, rng).backward()
        optimizer.step()
        if step % CHECK_EVERY == 0:
            drawn = drawn_probability(family, judged)
            if drawn >= DRAWN:
                return drawn
    raise ModelError(
        f"the warm-up of embedded:tiny-unified draws {drawn:.2f} of the planned digits after "
        f"{max_steps} steps; {DRAWN} is wanted"
    )


def _known() -> list[OddPrompt]:
    return [prompt for oddity in Oddity for prompt in odd_prompts(oddity, "train")]


def plan_loss(
    family: CompactUnified, prompts: Sequence[OddPrompt], rng: random.Random, *, vague: float
) -> Tensor:
    """Return the mean cross-entropy of the tokens of right plans, with the share `vague` of them
    replaced by vague ones."""
    pairs = [(prompt, None if rng.random() < vague else prompt.digit) for prompt in prompts]
    log_probs_BT, mask_BT = _plan_log_probs(family, pairs)
    return -log_probs_BT.sum() / mask_BT.sum()


def meaning_loss(family: CompactUnified, known: Sequence[tuple[str, int]]) -> Tensor:
    """Return the mean cross-entropy of the names of the digits that questions mean, and of their
    ends."""
    tokenizer = family.pipeline.tokenizer
    rows = []
    for question, digit in known:
        *text, name = tokenizer(MEANING.format(question, NAMES[digit]))["input_ids"]
        rows.append((text, [name, tokenizer.eos_token_id]))
    log_probs_BT, mask_BT = _log_probs(family, rows)
    return -log_probs_BT.sum() / mask_BT.sum()


def flow_loss(
    family: CompactUnified, digits: Digits, prompts: Sequence[OddPrompt], rng: random.Random
) -> Tensor:
    """Return the mean squared error of the velocity, for digits as planned after any prompt, or any
    digit after a vague plan."""
    drawn = rng.choices(range(len(NAMES)), k=PICTURES)
    clean = digits.latents[[rng.choice(digits.places[digit]) for digit in drawn]]
    planned = [None if rng.random() < VAGUE_DRAWN else digit for digit in drawn]
    pairs = list(zip(rng.choices(prompts, k=PICTURES), planned, strict=True))
    sigma_B, noise = torch.sigmoid(torch.randn(PICTURES)), torch.randn_like(clean)
    levels = sigma_B.view(-1, 1, 1, 1)
    noisy = (1 - levels) * clean + levels * noise
    predicted = family.velocity(family.transformer, noisy, sigma_B, _contexts(family, pairs))
    return nn.functional.mse_loss(predicted, noise - clean)


@torch.no_grad()
def planned_probability(family: CompactUnified, prompts: Sequence[OddPrompt]) -> float:
    """Return the mean probability of the complete right plans."""
    pairs = [(prompt, prompt.digit) for prompt in prompts]
    return float(_plan_log_probs(family, pairs)[0].sum(1).exp().mean())


@torch.no_grad()
def drawn_probability(family: CompactUnified, prompts: Sequence[OddPrompt]) -> float:
    """Return the judge's mean probability of the planned digits in samples of a fixed seed, under
    right plans."""
    from rl_core.rewards.base import Sample
    from rl_core.rewards.samples import as_image
    from rl_core.rewards.scorers.digit import DigitScorer
    from rl_core.sde import euler_step, sigmas

    told = family.read(
        family.transformer, _contexts(family, [(prompt, prompt.digit) for prompt in prompts])
    )
    shape = (len(prompts), 1, *(family.config.sample_size,) * 2)
    x, levels = (
        torch.randn(shape, generator=torch.Generator().manual_seed(SEED)),
        sigmas(JUDGED_STEPS, 1.0).tolist(),
    )
    for sigma, sigma_next in pairwise(levels):
        v = family.velocity(family.transformer, x, torch.full((len(x),), sigma), told)
        x = euler_step(x, v, sigma, sigma_next).sample
    samples = [
        Sample(prompt=prompt.text, image=as_image(picture), metadata={"digit": prompt.digit})
        for prompt, picture in zip(prompts, family.decode(x), strict=True)
    ]
    scores = [
        float(score)
        for score in DigitScorer(DigitScorer.Config()).score_images(  # type: ignore[attr-defined]
            samples
        )
    ]
    return sum(scores) / len(scores)


def _contexts(family: CompactUnified, pairs: Sequence[Planned]) -> dict[str, Tensor]:
    """Return the transformer's conditions for prompts with their plans."""
    told = []
    for prompt, digit in pairs:
        asked, plan = _tokens(family, prompt, digit)
        told.append(Condition({CONTEXT: torch.tensor(asked + plan)}))
    return {**family.batch(told), ROWS: torch.arange(len(pairs))}


def _plan_log_probs(family: CompactUnified, pairs: Sequence[Planned]) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of the plans' tokens, [B, L - 1], zero elsewhere, and the mask
    of those tokens."""
    return _log_probs(family, [_tokens(family, prompt, digit) for prompt, digit in pairs])


def _log_probs(
    family: CompactUnified, rows: Sequence[tuple[list[int], list[int]]]
) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of what follows each text, [B, L - 1], zero elsewhere, and the
    mask of those tokens. Args: rows: tokens of a text, and of what follows."""
    batch = family.batch([Condition({CONTEXT: torch.tensor(asked + plan)}) for asked, plan in rows])
    ids_BL, used_BL = batch[CONTEXT], batch[f"{CONTEXT}_mask"]
    starts_B = torch.tensor([len(asked) for asked, _ in rows])
    mask_BT = used_BL[:, 1:] & (torch.arange(1, ids_BL.shape[1]) >= starts_B[:, None])
    logits_BTV = family.transformer.decoder(input_ids=ids_BL[:, :-1], use_cache=False).logits
    log_probs_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BL[:, 1:, None])[..., 0]
    return log_probs_BT.masked_fill(~mask_BT, 0.0), mask_BT


def _tokens(
    family: CompactUnified, prompt: OddPrompt, digit: int | None
) -> tuple[list[int], list[int]]:
    """Return the tokens of the prompt as in a rollout, and of the plan with its end."""
    tokenizer = family.pipeline.tokenizer
    plan = tokenizer(PLAN.format("" if digit is None else NAMES[digit]).strip())["input_ids"]
    return encode_chat(tokenizer, [{"role": "user", "content": prompt.text}], {}), [
        *plan,
        tokenizer.eos_token_id,
    ]
