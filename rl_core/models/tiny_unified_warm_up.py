"""The supervised start of the embedded unified model: half of the plans right, half of the pictures legible.

The decoder learns to write the plan of an odd prompt (`rl_core.data.odd_prompts`) by cross-entropy. From its mark on
decoder and transformer learn flow matching, too (as `rl_core.models.tiny_sd3_warm_up`), on plans that come with *any*
prompt, so that what is drawn is what was planned, right or wrong. Training ends at the mark of the pictures: a start
from which reinforcement learning has somewhere to go on both sides.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.data.digit_prompts import NAMES
from rl_core.data.odd_prompts import Oddity, OddPrompt, draw_odd_prompts, odd_prompts
from rl_core.errors import ModelError
from rl_core.models.diffusion.base import Condition
from rl_core.models.tiny_sd3_warm_up import Digits, load
from rl_core.models.tiny_unified import PLAN, make_pipeline
from rl_core.models.tokenizer import encode_chat
from rl_core.models.unified.compact import CONTEXT, ROWS, CompactUnified
from rl_core.models.warm_up_optimizer import WarmUpOptimizer

PLANNED_AT, DRAWN_AT = 0.4, 0.5
"""Marks: mean probability of the right plan, and of the planned digit as the judge `network` sees it."""
MAX_STEPS = 500
CHECK_EVERY = 25
NUM_JUDGED = 100
JUDGED_STEPS = 10
"""Denoising steps of the judged samples."""
BATCH = 64
HIDDEN_RATE, LEARNING_RATE = 2e-2, 2e-3
SEED = 1


@dataclass(frozen=True)
class WarmUp:
    """How it went: optimiser steps, and the two mean probabilities at the end."""

    steps: int
    planned: float
    drawn: float


def build(folder: Path) -> WarmUp:
    """Make the pipeline and write it to `folder`. Raises: ModelError when it does not learn to plan and to draw."""
    pipeline = make_pipeline()
    result = warm_up(pipeline)
    pipeline.save_pretrained(folder)
    return result


def warm_up(
    pipeline: Any, *, planned_at: float = PLANNED_AT, drawn_at: float = DRAWN_AT, max_steps: int = MAX_STEPS
) -> WarmUp:
    """Train in place until both marks are reached. Raises: ModelError when they are not within `max_steps`."""
    family, digits = CompactUnified(pipeline), load(pipeline)
    known = [prompt for oddity in Oddity for prompt in odd_prompts(oddity, "train")]
    judged = draw_odd_prompts("train", NUM_JUDGED, SEED)
    parts = family.transformer
    optimizer = WarmUpOptimizer(parts, parts, max_steps, hidden_rate=HIDDEN_RATE, rate=LEARNING_RATE)
    rng, drawing, planned, drawn = random.Random(SEED), False, 0.0, 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        for step in range(1, max_steps + 1):
            optimizer.zero_grad()
            plan_loss(family, rng.choices(known, k=BATCH)).backward()
            if drawing:
                flow_loss(family, digits, known, rng).backward()
            optimizer.step()
            if step % CHECK_EVERY == 0:
                planned = planned_probability(family, judged)
                drawn = drawn_probability(family, judged) if drawing else 0.0
                drawing = drawing or planned >= planned_at
                if drawn >= drawn_at:
                    return WarmUp(step, planned, drawn)
    raise ModelError(
        f"the warm-up of embedded:tiny-unified reached {planned:.2f} of {planned_at} for plans and {drawn:.2f} of "
        f"{drawn_at} for pictures after {max_steps} steps"
    )


def plan_loss(family: CompactUnified, prompts: Sequence[OddPrompt]) -> Tensor:
    """Mean cross-entropy of the tokens of right plans."""
    log_probs_BT, mask_BT = _plan_log_probs(family, prompts)
    return -log_probs_BT.sum() / mask_BT.sum()


def flow_loss(family: CompactUnified, digits: Digits, prompts: Sequence[OddPrompt], rng: random.Random) -> Tensor:
    """Mean squared error of the velocity, of digits as planned after any prompt."""
    planned = rng.choices(range(len(NAMES)), k=BATCH)
    clean = digits.latents[[rng.choice(digits.places[digit]) for digit in planned]]
    pairs = list(zip(rng.choices(prompts, k=BATCH), planned, strict=True))
    sigma_B, noise = torch.sigmoid(torch.randn(BATCH)), torch.randn_like(clean)
    levels = sigma_B.view(-1, 1, 1, 1)
    noisy = (1 - levels) * clean + levels * noise
    predicted = family.velocity(family.transformer, noisy, sigma_B, _contexts(family, pairs))
    return nn.functional.mse_loss(predicted, noise - clean)


@torch.no_grad()
def planned_probability(family: CompactUnified, prompts: Sequence[OddPrompt]) -> float:
    """The mean probability of the right plans, whole."""
    return float(_plan_log_probs(family, prompts)[0].sum(1).exp().mean())


@torch.no_grad()
def drawn_probability(family: CompactUnified, prompts: Sequence[OddPrompt]) -> float:
    """The judge's mean probability of the planned digits in samples of a fixed seed, under right plans."""
    from rl_core.rewards.base import Sample
    from rl_core.rewards.samples import as_image
    from rl_core.rewards.scorers.digit import DigitScorer
    from rl_core.sde import euler_step, sigmas

    told = family.read(family.transformer, _contexts(family, [(prompt, prompt.digit) for prompt in prompts]))
    shape = (len(prompts), 1, *(family.config.sample_size,) * 2)
    x, levels = torch.randn(shape, generator=torch.Generator().manual_seed(SEED)), sigmas(JUDGED_STEPS, 1.0).tolist()
    for sigma, sigma_next in pairwise(levels):
        v = family.velocity(family.transformer, x, torch.full((len(x),), sigma), told)
        x = euler_step(x, v, sigma, sigma_next).sample
    samples = [
        Sample(prompt=prompt.text, image=as_image(picture), metadata={"digit": prompt.digit})
        for prompt, picture in zip(prompts, family.decode(x), strict=True)
    ]
    scores = [float(score) for score in DigitScorer(DigitScorer.Config()).score_images(samples)]  # type: ignore[arg-type]
    return sum(scores) / len(scores)


def _contexts(family: CompactUnified, pairs: Sequence[tuple[OddPrompt, int]]) -> dict[str, Tensor]:
    """What is read of prompts with their plans. Args: pairs: a prompt, and the digit that is planned."""
    told = []
    for prompt, digit in pairs:
        asked, plan = _tokens(family, prompt, digit)
        told.append(Condition({CONTEXT: torch.tensor(asked + plan)}))
    return {**family.batch(told), ROWS: torch.arange(len(pairs))}


def _plan_log_probs(family: CompactUnified, prompts: Sequence[OddPrompt]) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the tokens of right plans, [B, L - 1], zero elsewhere, and where they are."""
    rows = [_tokens(family, prompt, prompt.digit) for prompt in prompts]
    batch = family.batch([Condition({CONTEXT: torch.tensor(asked + plan)}) for asked, plan in rows])
    ids_BL, used_BL = batch[CONTEXT], batch[f"{CONTEXT}_mask"]
    starts_B = torch.tensor([len(asked) for asked, _ in rows])
    mask_BT = used_BL[:, 1:] & (torch.arange(1, ids_BL.shape[1]) >= starts_B[:, None])
    logits_BTV = family.transformer.decoder(input_ids=ids_BL[:, :-1], use_cache=False).logits
    log_probs_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BL[:, 1:, None])[..., 0]
    return log_probs_BT.masked_fill(~mask_BT, 0.0), mask_BT


def _tokens(family: CompactUnified, prompt: OddPrompt, digit: int) -> tuple[list[int], list[int]]:
    """Of the prompt as a rollout asks it, and of the plan with its end."""
    tokenizer = family.pipeline.tokenizer
    plan = tokenizer(PLAN.format(NAMES[digit]))["input_ids"]
    return encode_chat(tokenizer, [{"role": "user", "content": prompt.text}], {}), [*plan, tokenizer.eos_token_id]
