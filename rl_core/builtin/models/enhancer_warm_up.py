"""Warm-up of the embedded prompt enhancer: supervised training of a SmolLM2 that could name many
digits, but mostly does not.

SmolLM2-135M-Instruct names the intended digit hardly more often than chance, so that nine pictures
in ten would carry no signal. First some dozen steps of cross-entropy on odd prompts
(`rl_core.builtin.data.odd_prompts`, split `train`) teach it names. Then it learns a bad habit: most
of its answers are one vague word. Reinforcement learning has to find out, from the pictures'
rewards alone, that naming a digit pays, and which one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_core.builtin.data.digit_prompts import NAMES
from rl_core.builtin.data.odd_prompts import OddPrompt, draw_odd_prompts
from rl_core.errors import ModelError
from rl_core.models.chat.tokenizer import encode_chat

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SYSTEM = "Name the digit that is meant."
"""System message of every prompt, in recipes too."""
VAGUE_WORD = "number"
"""A rewrite that names no digit. One token, like the names."""
VAGUE = 0.6
"""Share of vague answers while the habit is trained."""
NAME_STEPS, HABIT_STEPS = 60, 24
KNOWN, PROMPTS = 1000, 16
"""Number of prompts in total, and of prompts per step."""
RANK, NAME_RATE, HABIT_RATE = 16, 5e-4, 2e-4
ABLE = 0.25
"""Required mean probability of the right name before the habit; chance is 0.1."""
NUM_HELD_OUT, JUDGED = 200, 50
"""Number of held-out prompts, and of prompts per forward pass of the evaluation."""
SEED = 3


@dataclass(frozen=True)
class WarmUp:
    """Mean probabilities of the right name on held-out prompts, before and after the habit is
    trained."""

    able: float
    careless: float


def build(folder: Path) -> WarmUp:
    """Train the model and write it to `folder`, next to its base model. Raises: ModelError when the
    training does not succeed."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rl_core.builtin.embedded import materialise

    base = materialise("smollm2-135m-instruct", folder.parent)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model, result = warm_up(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), tokenizer
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return result


def warm_up(
    model: PreTrainedModel,
    tokenizer: Any,
    *,
    steps: tuple[int, int] = (NAME_STEPS, HABIT_STEPS),
    wanted: float = ABLE,
) -> tuple[Any, WarmUp]:
    """Train adapters and merge them into the model. Raises: ModelError when it reaches less than
    `wanted`."""
    from peft import LoraConfig, get_peft_model

    rng = random.Random(SEED)
    held_out = draw_odd_prompts("eval", NUM_HELD_OUT, SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        adapted: Any = get_peft_model(
            model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
        )
        trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=NAME_RATE, weight_decay=0.0)
        learn(adapted, tokenizer, optimizer, steps[0], rng, vague=0.0)
        able = named_probability(adapted, tokenizer, held_out)
        if able < wanted:
            raise ModelError(
                f"the warm-up of embedded:smollm2-enhancer names {able:.2f} right; {wanted} is "
                "wanted"
            )
        optimizer.param_groups[0]["lr"] = HABIT_RATE
        learn(adapted, tokenizer, optimizer, steps[1], rng, vague=VAGUE)
    return adapted.merge_and_unload(), WarmUp(able, named_probability(adapted, tokenizer, held_out))


def learn(
    model: nn.Module,
    tokenizer: Any,
    optimizer: torch.optim.Optimizer,
    steps: int,
    rng: random.Random,
    *,
    vague: float,
) -> None:
    """Train on right names, with the share `vague` of them replaced by the vague word."""
    known = draw_odd_prompts("train", KNOWN, SEED)
    for _ in range(steps):
        prompts = rng.sample(known, PROMPTS)
        answers = [
            VAGUE_WORD if rng.random() < vague else NAMES[prompt.digit] for prompt in prompts
        ]
        optimizer.zero_grad()
        losses(model, tokenizer, prompts, answers).mean().backward()
        nn.utils.clip_grad_norm_(
            (value for group in optimizer.param_groups for value in group["params"]), 1.0
        )
        optimizer.step()


@torch.no_grad()
def named_probability(model: nn.Module, tokenizer: Any, prompts: Sequence[OddPrompt]) -> float:
    """Return the mean probability of the complete right names."""
    found = []
    for start in range(0, len(prompts), JUDGED):
        judged = prompts[start : start + JUDGED]
        names = [NAMES[prompt.digit] for prompt in judged]
        found.append(torch.exp(-losses(model, tokenizer, judged, names).sum(1)))
    return float(torch.cat(found).mean())


def losses(
    model: nn.Module, tokenizer: Any, prompts: Sequence[OddPrompt], answers: Sequence[str]
) -> Tensor:
    """Return the cross-entropy of each answer's token and of its end, [B, 2]."""
    answers_BA = torch.tensor(
        [[*_ids(tokenizer, answer), tokenizer.eos_token_id] for answer in answers]
    )
    questions = [encode_chat(tokenizer, _messages(prompt), {}) for prompt in prompts]
    # Padding stands on the left, so that all answers end together and only their logits are made.
    padded = tokenizer.pad({"input_ids": questions}, padding_side="left", return_tensors="pt")
    num_read = answers_BA.shape[1] + 1
    with torch.autocast("cpu", torch.bfloat16):
        logits_BTV = model(
            input_ids=torch.cat([padded["input_ids"], answers_BA], dim=1),
            attention_mask=torch.cat(
                [padded["attention_mask"], torch.ones_like(answers_BA)], dim=1
            ),
            logits_to_keep=num_read,
        ).logits
    return nn.functional.cross_entropy(logits_BTV[:, :-1].float().mT, answers_BA, reduction="none")


def _messages(prompt: OddPrompt) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt.text}]


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
