"""Warm-up of the embedded diffusion model: some hundred supervised steps on scikit-learn's digits.

Flow matching (arXiv 2210.02747) with the noise levels of SD3 (arXiv 2403.03206 sec. 3.1): x_sigma =
(1 - sigma) x_0 + sigma eps, sigma the logistic of a normal, and the transformer learns eps - x_0.
Text encoders and transformer are trained together; some prompts are left empty, so that
classifier-free guidance has an unconditional prediction. Training ends as soon as a judge finds the
requested digit with a mean probability of `STOP_AT`, which leaves room for improvement by
reinforcement learning.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_core.builtin.data.digit_prompts import DigitPrompt, digit_prompts, draw_prompts
from rl_core.builtin.models.tiny_sd3 import SCALE, TEXT_LENGTH, make_pipeline
from rl_core.errors import ModelError

if TYPE_CHECKING:
    from diffusers.pipelines.stable_diffusion_3.pipeline_stable_diffusion_3 import (
        StableDiffusion3Pipeline,
    )

STOP_AT = 0.5
"""Mean probability of the requested digit at which training ends, by the `network` judge of
`rl_core.rewards.scorers.digit`."""
MAX_STEPS = 1200
CHECK_EVERY = 25
NUM_JUDGED = 100
JUDGED_STEPS = 10
"""Denoising steps of the judged samples, without guidance."""
BATCH = 64
LEARNING_RATE = 1e-3
RAMP_STEPS = 20
EMPTY_SHARE = 0.1
"""Share of prompts that are left empty."""
SEED = 1
TRAIN_TIMESTEPS = 1000


@dataclass(frozen=True)
class WarmUp:
    """Result of the warm-up."""

    steps: int
    probability: float


@dataclass(frozen=True)
class Digits:
    """Training data of the warm-up."""

    latents: Tensor
    """Latents of scikit-learn's digits, [N, 1, 8, 8]."""
    places: list[list[int]]
    """Indices of each digit among the latents."""
    prompts: list[DigitPrompt]
    """Prompts of the training wordings."""


def build(folder: Path) -> WarmUp:
    """Train the pipeline and write it to `folder`. Raises: ModelError when it does not learn to
    draw."""
    pipeline = make_pipeline()
    result = warm_up(pipeline)
    pipeline.save_pretrained(folder)
    return result


def warm_up(
    pipeline: StableDiffusion3Pipeline, *, stop_at: float = STOP_AT, max_steps: int = MAX_STEPS
) -> WarmUp:
    """Train in place until `stop_at` is reached. Raises: ModelError when that takes more than
    `max_steps`."""
    digits, judged = load(pipeline), draw_prompts("train", NUM_JUDGED, SEED)
    parameters = [parameter for part in trained_parts(pipeline) for parameter in part.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.01
    )
    rng, probability = random.Random(SEED), 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        for step in range(1, max_steps + 1):
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(1.0, step / RAMP_STEPS)
            loss = loss_of(pipeline, digits, rng)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            if step % CHECK_EVERY == 0:
                probability = probability_of(pipeline, judged)
                if probability >= stop_at:
                    return WarmUp(step, probability)
    raise ModelError(
        f"the warm-up of embedded:tiny-sd3 reached {probability:.2f} of {stop_at} after "
        f"{max_steps} steps"
    )


def trained_parts(pipeline: StableDiffusion3Pipeline) -> tuple[nn.Module, ...]:
    """Return the parts that are trained: all but the autoencoder."""
    return pipeline.transformer, pipeline.text_encoder, pipeline.text_encoder_2


@torch.no_grad()
def load(pipeline: StableDiffusion3Pipeline) -> Digits:
    """Encode scikit-learn's digits with the pipeline's autoencoder."""
    from sklearn.datasets import load_digits

    dataset: Any = load_digits()
    pixels = torch.from_numpy(dataset.images).float()[:, None] / 8 - 1
    pictures = (
        pixels.repeat_interleave(SCALE, -1).repeat_interleave(SCALE, -2).expand(-1, 3, -1, -1)
    )
    vae = pipeline.vae
    latents = (
        vae.encode(pictures).latent_dist.mode() - vae.config.shift_factor
    ) * vae.config.scaling_factor
    places: list[list[int]] = [[] for _ in range(10)]
    for place, digit in enumerate(dataset.target.tolist()):
        places[digit].append(place)
    return Digits(latents, places, digit_prompts("train"))


def loss_of(pipeline: Any, digits: Digits, rng: random.Random) -> Tensor:
    """Return the mean squared error of the velocity, over prompts of the training wordings."""
    prompts = rng.choices(digits.prompts, k=BATCH)
    clean = digits.latents[[rng.choice(digits.places[prompt.digit]) for prompt in prompts]]
    texts = ["" if rng.random() < EMPTY_SHARE else prompt.text for prompt in prompts]
    embeds, _, pooled, _ = pipeline.encode_prompt(
        texts, None, None, do_classifier_free_guidance=False, max_sequence_length=TEXT_LENGTH
    )
    sigmas_B = torch.sigmoid(torch.randn(BATCH))
    noise, levels = torch.randn_like(clean), sigmas_B.view(-1, 1, 1, 1)
    predicted = pipeline.transformer(
        hidden_states=(1 - levels) * clean + levels * noise,
        timestep=sigmas_B * TRAIN_TIMESTEPS,
        encoder_hidden_states=embeds,
        pooled_projections=pooled,
        return_dict=False,
    )[0]
    return nn.functional.mse_loss(predicted, noise - clean)


def probability_of(
    pipeline: Any,
    prompts: Sequence[DigitPrompt],
    *,
    guidance_scale: float = 1.0,
) -> float:
    """Return the judge's mean probability of the requested digits in samples of a fixed seed."""
    from rl_core.rewards.base import Sample
    from rl_core.rewards.scorers.digit import DigitScorer

    texts = [prompt.text for prompt in prompts]
    drawn = pipeline(
        texts,
        num_inference_steps=JUDGED_STEPS,
        guidance_scale=guidance_scale,
        max_sequence_length=TEXT_LENGTH,
        generator=torch.Generator().manual_seed(SEED),
    ).images
    samples = [Sample(prompt=text, image=image) for text, image in zip(texts, drawn, strict=True)]
    scores = [
        float(score)
        for score in DigitScorer(DigitScorer.Config()).score_images(  # type: ignore[attr-defined]
            samples
        )
    ]
    return sum(scores) / len(scores)
