"""Warm-up of the embedded teacher of sums: supervised training of SmolLM2 on sums that are not held
out.

SmolLM2-135M-Instruct gives the sum of two numbers up to ten in most cases, in a sentence and with
slips. Some dozen steps of cross-entropy on the training questions of the recipe `distill`, each
answered by the bare number, make the model that the recipe's student learns from. It has to give
the right answers to held-out questions, which it never saw, with a mean probability of `ABLE`; no
reward is involved.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from rl_core.builtin.data.reasoning_problems import GenerateSpec, materialise
from rl_core.errors import ModelError
from rl_core.models.chat.tokenizer import encode_chat

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NUM_TRAIN, NUM_HELD_OUT = 67, 54
"""Number of questions of each split: all sums of two numbers up to ten."""
STEPS, PROMPTS = 48, 16
"""Number of steps, and of questions per step."""
RANK, RATE = 16, 5e-4
ABLE = 0.8
"""Required mean probability of the right answers to held-out questions."""
IGNORED = -100
"""Target of a place behind the end of an answer."""
SEED = 3


@dataclass(frozen=True)
class Lesson:
    """A conversation up to the reply, and the reply."""

    messages: list[dict[str, str]]
    answer: str


def lessons_spec(split: Literal["train", "eval"]) -> GenerateSpec:
    """Return the questions of a split, as in the recipe `distill`."""
    return GenerateSpec(
        task="basic_arithmetic",
        split=split,
        size=NUM_TRAIN if split == "train" else NUM_HELD_OUT,
        seed=1,
        eval_fraction=0.4,
        prompt_suffix=" State the final answer only.",
        config={
            "min_terms": 2,
            "max_terms": 2,
            "min_digits": 1,
            "max_digits": 1,
            "operators": ["+"],
            "allow_parentheses": False,
            "allow_negation": False,
        },
    )


def lessons(split: Literal["train", "eval"]) -> list[Lesson]:
    """Return the questions of a split with their answers."""
    with tempfile.TemporaryDirectory() as folder:
        text = materialise(lessons_spec(split), folder).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in text.splitlines()]
    return [Lesson(row["prompt"], str(row["reward_spec"]["ground_truth"])) for row in rows]


def build(folder: Path) -> float:
    """Train the model and write it to `folder`, next to its base model.

    Returns: the mean probability of right answers to held-out questions. Raises: ModelError when
    the training does not succeed.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from rl_core.builtin.embedded import materialise as embedded

    base = embedded("smollm2-135m-instruct", folder.parent)
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model, able = warm_up(model, tokenizer, lessons("train"), lessons("eval"))
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return able


def warm_up(
    model: PreTrainedModel,
    tokenizer: Any,
    known: Sequence[Lesson],
    held_out: Sequence[Lesson],
    *,
    steps: int = STEPS,
    wanted: float = ABLE,
) -> tuple[Any, float]:
    """Train adapters and merge them into the model. Raises: ModelError when it reaches less than
    `wanted`."""
    from peft import LoraConfig, get_peft_model

    rng = random.Random(SEED)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        adapted: Any = get_peft_model(
            model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
        )
        trained = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=RATE, weight_decay=0.0)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = RATE * (1 - step / steps)
            optimizer.zero_grad()
            asked = rng.sample(list(known), min(PROMPTS, len(known)))
            losses(adapted, tokenizer, asked).mean().backward()
            nn.utils.clip_grad_norm_(trained, 1.0)
            optimizer.step()
        with torch.no_grad():
            able = float(torch.exp(-losses(adapted, tokenizer, held_out)).mean())
    if able < wanted:
        raise ModelError(
            f"the warm-up of embedded:smollm2-adder gives right answers with {able:.2f}; {wanted} "
            "is wanted"
        )
    return adapted.merge_and_unload(), able


def losses(model: nn.Module, tokenizer: Any, asked: Sequence[Lesson]) -> Tensor:
    """Return the cross-entropy of each whole answer with its end, [B]."""
    answers = [
        [*tokenizer(one.answer, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        for one in asked
    ]
    width = max(map(len, answers))
    answers_BA = torch.tensor([ids + [IGNORED] * (width - len(ids)) for ids in answers])
    questions = [encode_chat(tokenizer, one.messages, {}) for one in asked]
    # Padding stands on the left, so that all answers begin together and only their logits are made.
    padded = tokenizer.pad({"input_ids": questions}, padding_side="left", return_tensors="pt")
    given_BA = answers_BA.where(answers_BA != IGNORED, tokenizer.eos_token_id)
    with torch.autocast("cpu", torch.bfloat16):
        logits_BTV = model(
            input_ids=torch.cat([padded["input_ids"], given_BA], dim=1),
            attention_mask=torch.cat([padded["attention_mask"], torch.ones_like(given_BA)], dim=1),
            logits_to_keep=width + 1,
        ).logits
    return nn.functional.cross_entropy(
        logits_BTV[:, :-1].float().mT, answers_BA, reduction="none", ignore_index=IGNORED
    ).sum(1)
