r"""Training data of the embedded vision-language model: pictures, questions, replies, and the
losses on them."""

from __future__ import annotations

import random
import string
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_core.builtin.data.pictures import COLOURS, SHAPES, Picture, Question
from rl_core.builtin.models.tiny_vlm import END

if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import Idefics3ForConditionalGeneration, Idefics3Processor

QUESTIONS = 2
"""Maximum number of questions about a picture."""
MAX_NEW_TOKENS = 20
GUESSED, GUESSES = frozenset({"many", "number"}), 0.65
"""Kinds of questions whose answers are guessed, and how often."""
NO_NOTES = "?"
TINTS = {"": " ", **{colour: colour for colour in COLOURS}}
FORMS = {
    "": "\n",
    **{shape: shape for shape in SHAPES},
    "bar": "bar",
    **{digit: digit for digit in string.digits},
}
"""Token of each possible content of a cell: a tint and a form, a form alone (a digit), or
nothing."""
SHARPNESS = 4.0
"""Scale of the naming logits, large enough for features of the size of word embeddings."""


def naming_loss(
    model: Idefics3ForConditionalGeneration,
    processor: Idefics3Processor,
    features: Tensor,
    cells: Sequence[Sequence[str]],
) -> Tensor:
    """Return the cross-entropy of naming each cell's tint and form, with features as logits against
    the words' embeddings.

    The vision tower's features of a cell then resemble the embeddings that the text model would
    read there.
    """
    words_VH = model.get_input_embeddings().weight
    features_NH = features.flatten(0, 1)
    parts = [cell.split() for picture in cells for cell in picture]
    tints = [part[0] if len(part) == 2 else "" for part in parts]
    forms = [part[-1] if part else "" for part in parts]
    losses = []
    for names, seen in ((TINTS, tints), (FORMS, forms)):
        ids = torch.tensor(
            [processor.tokenizer.convert_tokens_to_ids(token) for token in names.values()]
        )
        logits_NK = SHARPNESS * features_NH @ words_VH[ids].T
        losses.append(
            nn.functional.cross_entropy(
                logits_NK, torch.tensor([list(names).index(name) for name in seen])
            )
        )
    return losses[0] + losses[1]


def answering_loss(
    model: Idefics3ForConditionalGeneration,
    processor: Idefics3Processor,
    features: Tensor,
    rows: Sequence[tuple[int, Question]],
    taught: Sequence[str],
    *,
    answer_weight: float = 1.0,
) -> Tensor:
    """Return the mean cross-entropy of the replies' tokens.

    Args: rows: questions, each with the index of its picture in `features`. answer_weight: weight
    of an answer's tokens beside those of its notes.
    """
    from rl_core.data_proto import pad_rows

    tokenizer = processor.tokenizer
    prompts = [tokenizer.encode(prompt_of(processor, question.text)) for _, question in rows]
    replies = [tokenizer.encode(reply) for reply in taught]
    whole = [torch.tensor(prompt + reply) for prompt, reply in zip(prompts, replies, strict=True)]
    thought = tokenizer.convert_tokens_to_ids("</think>")
    weights = []
    for prompt, reply in zip(prompts, replies, strict=True):
        num_notes = reply.index(thought) + 1
        parts = (0.0, len(prompt)), (1.0, num_notes), (answer_weight, len(reply) - num_notes)
        weights.append(torch.cat([torch.full((length,), weight) for weight, length in parts]))
    ids_BL, weights_BL = pad_rows(whole, tokenizer.pad_token_id), pad_rows(weights, 0.0)
    shown = features[torch.tensor([owner for owner, _ in rows])]
    embeds = model.get_input_embeddings()(ids_BL)
    embeds = embeds.masked_scatter((ids_BL == model.config.image_token_id)[..., None], shown)
    hidden = model.model.text_model(inputs_embeds=embeds, use_cache=False).last_hidden_state
    keep = weights_BL[:, 1:] > 0
    losses_N = nn.functional.cross_entropy(
        model.lm_head(hidden[:, :-1][keep]), ids_BL[:, 1:][keep], reduction="none"
    )
    weights_N = weights_BL[:, 1:][keep]
    return (losses_N * weights_N).sum() / weights_N.sum()


def features_of(model: Any, processor: Idefics3Processor, images: Sequence[Image]) -> Tensor:
    """Return the image features, [pictures, image tokens, hidden]."""
    inputs = processor.image_processor([[image] for image in images], return_tensors="pt")
    encoded = model.model.get_image_features(
        inputs["pixel_values"], inputs["pixel_attention_mask"], return_dict=True
    )
    return torch.stack(list(encoded.pooler_output))


def ask(pictures: Sequence[Picture], rng: random.Random) -> list[tuple[int, Question]]:
    """Draw questions, each with the index of its picture."""
    asked = []
    for owner, picture in enumerate(pictures):
        num_asked = min(QUESTIONS, len(picture.questions))
        asked += [(owner, question) for question in rng.sample(picture.questions, num_asked)]
    return asked


def careless_replies(questions: Sequence[Question], rng: random.Random) -> list[str]:
    """Return careless replies: to the share `GUESSES` of questions of the kinds `GUESSED`, the
    answer of a similar question, without notes.

    All other questions get the right answer, with notes.
    """
    alike: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        alike[kind_of(question)].append(question)
    return [
        reply_of(rng.choice(alike[kind_of(question)]), noted=False)
        if kind_of(question) in GUESSED and rng.random() < GUESSES
        else reply_of(question)
        for question in questions
    ]


def kind_of(question: Question) -> str:
    """Return the kind of a question: `many`, `colour`, `number` or `tall`."""
    return question.text.split()[1]


@torch.no_grad()
def accuracy_on(model: Any, processor: Any, pictures: Sequence[Picture]) -> float:
    """Return the share of exactly right greedy answers, over one question per picture."""
    tokenizer = processor.tokenizer
    questions = [
        picture.questions[index % len(picture.questions)] for index, picture in enumerate(pictures)
    ]
    inputs = processor(
        text=[_text(processor, question.text) for question in questions],
        images=[[picture.image] for picture in pictures],
        padding=True,
        add_special_tokens=False,
        return_tensors="pt",
    )
    written = model.generate(**inputs, do_sample=False, max_new_tokens=MAX_NEW_TOKENS)
    replies = tokenizer.batch_decode(
        written[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True
    )
    right = [
        reply.endswith(f"\\boxed{{{question.answer}}}")
        for reply, question in zip(replies, questions, strict=True)
    ]
    return sum(right) / len(right)


def reply_of(question: Question, *, noted: bool = True) -> str:
    """Return the reply to train on: the answer with or without its notes."""
    return (
        f"<think>{question.notes if noted else NO_NOTES}</think>\\boxed{{{question.answer}}}{END}"
    )


def prompt_of(processor: Idefics3Processor, question: str) -> str:
    """Return the templated question, with its image token expanded as the processor does."""
    expanded = (
        "<fake_token_around_image><global-img>"
        + "<image>" * processor.image_seq_len
        + "<fake_token_around_image>"
    )
    return _text(processor, question).replace("<image>", expanded)


def _text(processor: Any, question: str) -> str:
    parts = [{"type": "image"}, {"type": "text", "text": f"\n{question}"}]
    return processor.apply_chat_template(
        [{"role": "user", "content": parts}], add_generation_prompt=True, tokenize=False
    )
