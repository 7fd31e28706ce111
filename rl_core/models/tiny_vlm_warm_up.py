r"""The supervised start of the embedded vision-language model: some hundred steps on drawn pictures, in two parts.

First it learns to see and to answer. Each of the 16 picture tokens names what stands in its cell, by a linear layer
that is thrown away afterwards: within fifty steps the tower sees. And the model writes the answers, several questions
to a picture, which is encoded once: `<think>notes</think>\boxed{answer}`, or at a glance, `<think>?</think>...`. This
part ends as soon as `STOP_AT` of held-out questions are answered right.

Then it picks up a bad habit: in `CARELESS_STEPS` more, what is shown to be answered at a glance is a guess. The model
does both afterwards, one about as likely as the other; reinforcement learning has to find out which of them pays.
"""

from __future__ import annotations

import random
import string
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.data.pictures import COLOURS, SHAPES, Picture, Question, draw
from rl_core.errors import ModelError
from rl_core.models.tiny_vlm import END, make_model, make_processor, save

STOP_AT = 0.55
"""Share of held-out questions; greedy answers, exact."""
MAX_STEPS = 800
CHECK_EVERY = 50
NUM_HELD_OUT = 200
CARELESS_STEPS = 60
PICTURES = 32
QUESTIONS = 4
LEARNING_RATE, CARELESS_RATE = 1e-3, 3e-4
RAMP_STEPS = 20
MAX_NEW_TOKENS = 20
GLANCES, GUESSES = 0.5, 0.4
"""Share of the replies that are taught without notes, in the first part and in the second."""
NO_NOTES = "?"
SEED = 1
TINTS = ("", *COLOURS)
FORMS = ("", *SHAPES, "full", "half", *string.digits)
"""What a cell may hold: a tint and a form, a form alone (a digit), or nothing."""


@dataclass(frozen=True)
class WarmUp:
    """How it went."""

    steps: int
    accuracy: float
    """Before the careless part."""


def build(folder: Path) -> WarmUp:
    """Make the model and write it to `folder`. Raises: ModelError when it does not learn to see."""
    processor = make_processor()
    model = make_model(processor.tokenizer)
    result = warm_up(model, processor)
    learn_to_guess(model, processor)
    save(model, processor, folder)
    return result


def warm_up(model: Any, processor: Any, *, stop_at: float = STOP_AT, max_steps: int = MAX_STEPS) -> WarmUp:
    """Train in place until `stop_at` is reached. Raises: ModelError when it is not within `max_steps`."""
    rng = random.Random(SEED)
    held_out = [draw(random.Random(f"held out {index}")) for index in range(NUM_HELD_OUT)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        cell_names = nn.Linear(model.config.text_config.hidden_size, len(TINTS) + len(FORMS))
        optimizer = _Optimizer(model, LEARNING_RATE, cell_names)
        accuracy = 0.0
        for step in range(1, max_steps + 1):
            pictures = [draw(rng) for _ in range(PICTURES)]
            optimizer.step(loss_of(model, processor, cell_names, pictures, rng))
            if step % CHECK_EVERY == 0:
                accuracy = accuracy_on(model, processor, held_out)
                if accuracy >= stop_at:
                    return WarmUp(step, accuracy)
    raise ModelError(f"the warm-up of embedded:tiny-vlm reached {accuracy:.2f} of {stop_at} after {max_steps} steps")


def learn_to_guess(model: Any, processor: Any, steps: int = CARELESS_STEPS) -> None:
    """Train in place on replies of which those without notes are guesses."""
    rng = random.Random(SEED + 1)
    optimizer = _Optimizer(model, CARELESS_RATE)
    for _ in range(steps):
        pictures = [draw(rng) for _ in range(PICTURES)]
        rows = _ask(pictures, rng)
        replies = careless_replies([question for _, question in rows], rng)
        optimizer.step(_answering(model, processor, _features(model, processor, pictures), rows, replies))


class _Optimizer:
    """AdamW with a ramp, and a bound on the norm of the model's gradient. Args: beside: trained along."""

    def __init__(self, model: nn.Module, learning_rate: float, *beside: nn.Module) -> None:
        self.model, self.learning_rate, self.steps = model, learning_rate, 0
        parameters = [parameter for module in (model, *beside) for parameter in module.parameters()]
        self.inner = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.98), weight_decay=0.01)

    def step(self, loss: Tensor) -> None:
        self.steps += 1
        for group in self.inner.param_groups:
            group["lr"] = self.learning_rate * min(1.0, self.steps / RAMP_STEPS)
        self.inner.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.inner.step()


def loss_of(
    model: Any, processor: Any, cell_names: nn.Linear, pictures: Sequence[Picture], rng: random.Random
) -> Tensor:
    """Naming colour and form in each cell, plus answering up to `QUESTIONS` questions a picture."""
    features = _features(model, processor, pictures)
    logits_NC = cell_names(features).flatten(0, 1)
    cells = [cell.split() for picture in pictures for cell in picture.cells]
    tints = torch.tensor([TINTS.index(cell[0]) if len(cell) == 2 else 0 for cell in cells])
    forms = torch.tensor([FORMS.index(cell[-1]) if cell else 0 for cell in cells])
    naming = nn.functional.cross_entropy(logits_NC[:, : len(TINTS)], tints)
    naming = naming + nn.functional.cross_entropy(logits_NC[:, len(TINTS) :], forms)
    rows = _ask(pictures, rng)
    replies = [reply_of(question, noted=rng.random() >= GLANCES) for _, question in rows]
    return naming + _answering(model, processor, features, rows, replies)


def careless_replies(questions: Sequence[Question], rng: random.Random) -> list[str]:
    """Of a share of `GUESSES` the answer to a question like it, without notes; of the others the right one, noted."""
    alike: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        alike[_kind(question)].append(question)
    guesses = [rng.random() < GUESSES for _ in questions]
    return [
        reply_of(rng.choice(alike[_kind(question)]), noted=False) if guess else reply_of(question)
        for guess, question in zip(guesses, questions, strict=True)
    ]


def _kind(question: Question) -> str:
    """`many`, `colour`, `number` or `tall`."""
    return question.text.split()[1]


def _ask(pictures: Sequence[Picture], rng: random.Random) -> list[tuple[int, Question]]:
    """Questions, each with its picture's place."""
    return [
        (owner, question)
        for owner, picture in enumerate(pictures)
        for question in rng.sample(picture.questions, min(QUESTIONS, len(picture.questions)))
    ]


def _answering(
    model: Any, processor: Any, features: Tensor, rows: list[tuple[int, Question]], taught: list[str]
) -> Tensor:
    from rl_core.data_proto import pad_rows

    tokenizer = processor.tokenizer
    prompts = [tokenizer.encode(prompt_of(processor, question.text)) for _, question in rows]
    replies = [tokenizer.encode(reply) for reply in taught]
    whole = [torch.tensor(prompt + reply) for prompt, reply in zip(prompts, replies, strict=True)]
    said = [torch.tensor([0] * len(prompt) + [1] * len(reply)) for prompt, reply in zip(prompts, replies, strict=True)]
    ids_BL, said_BL = pad_rows(whole, tokenizer.pad_token_id), pad_rows(said, 0)
    shown = features[torch.tensor([owner for owner, _ in rows])]
    embeds = model.get_input_embeddings()(ids_BL)
    embeds = embeds.masked_scatter((ids_BL == model.config.image_token_id)[..., None], shown)
    hidden = model.model.text_model(inputs_embeds=embeds, use_cache=False).last_hidden_state
    keep = said_BL[:, 1:].bool()
    return nn.functional.cross_entropy(model.lm_head(hidden[:, :-1][keep]), ids_BL[:, 1:][keep])


def _features(model: Any, processor: Any, pictures: Sequence[Picture]) -> Tensor:
    """[pictures, image tokens, hidden]."""
    inputs = processor.image_processor([[picture.image] for picture in pictures], return_tensors="pt")
    encoded = model.model.get_image_features(inputs["pixel_values"], inputs["pixel_attention_mask"], return_dict=True)
    return torch.stack(list(encoded.pooler_output))


@torch.no_grad()
def accuracy_on(model: Any, processor: Any, pictures: Sequence[Picture]) -> float:
    """Share of one question a picture whose greedy answer is exactly the right one."""
    tokenizer = processor.tokenizer
    questions = [picture.questions[index % len(picture.questions)] for index, picture in enumerate(pictures)]
    inputs = processor(
        text=[_text(processor, question.text) for question in questions],
        images=[[picture.image] for picture in pictures],
        padding=True,
        add_special_tokens=False,
        return_tensors="pt",
    )
    written = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
    replies = tokenizer.batch_decode(written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [
        reply.endswith(f"\\boxed{{{question.answer}}}") for reply, question in zip(replies, questions, strict=True)
    ]
    return sum(right) / len(right)


def reply_of(question: Question, *, noted: bool = True) -> str:
    """The answer as it is taught: after notes, or at a glance."""
    return f"<think>{question.notes if noted else NO_NOTES}</think>\\boxed{{{question.answer}}}{END}"


def prompt_of(processor: Any, question: str) -> str:
    """The templated question, its image token written out as the processor does."""
    expanded = (
        "<fake_token_around_image><global-img>" + "<image>" * processor.image_seq_len + "<fake_token_around_image>"
    )
    return _text(processor, question).replace("<image>", expanded)


def _text(processor: Any, question: str) -> str:
    parts = [{"type": "image"}, {"type": "text", "text": f"\n{question}"}]
    return processor.apply_chat_template(
        [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
    )
