r"""What the embedded vision-language model is taught with: pictures, questions, replies, and the losses on them."""

from __future__ import annotations

import random
import string
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_core.builtin.data.pictures import COLOURS, SHAPES, Picture, Question
from rl_core.builtin.models.tiny_vlm import END

QUESTIONS = 2
"""Asked about a picture, at most."""
MAX_NEW_TOKENS = 20
GUESSED, GUESSES = frozenset({"many", "number"}), 0.65
"""Kinds of question that are guessed at, and how often."""
NO_NOTES = "?"
TINTS = {"": " ", **{colour: colour for colour in COLOURS}}
FORMS = {"": "\n", **{shape: shape for shape in SHAPES}, "bar": "bar", **{digit: digit for digit in string.digits}}
"""What a cell may hold, a tint and a form, a form alone (a digit), or nothing -> the token that names it."""
SHARPNESS = 4.0
"""Of the names: a feature of the size of a word's embedding can then say what it shows."""


def naming_loss(model: Any, processor: Any, features: Tensor, cells: Sequence[Sequence[str]]) -> Tensor:
    """Cross entropy of calling each cell's tint and form by their words, features against the embeddings of words.

    So what the tower says about a cell is what the text model would read there, and can be copied.
    """
    words_VH = model.get_input_embeddings().weight
    features_NH = features.flatten(0, 1)
    parts = [cell.split() for picture in cells for cell in picture]
    tints = [part[0] if len(part) == 2 else "" for part in parts]
    forms = [part[-1] if part else "" for part in parts]
    losses = []
    for names, seen in ((TINTS, tints), (FORMS, forms)):
        ids = torch.tensor([processor.tokenizer.convert_tokens_to_ids(token) for token in names.values()])
        logits_NK = SHARPNESS * features_NH @ words_VH[ids].T
        losses.append(nn.functional.cross_entropy(logits_NK, torch.tensor([list(names).index(name) for name in seen])))
    return losses[0] + losses[1]


def answering_loss(
    model: Any, processor: Any, features: Tensor, rows: Sequence[tuple[int, Question]], taught: Sequence[str]
) -> Tensor:
    """Mean cross entropy of the replies' tokens. Args: rows: questions, each with its picture's place in `features`."""
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


def features_of(model: Any, processor: Any, images: Sequence[Any]) -> Tensor:
    """[pictures, image tokens, hidden]."""
    inputs = processor.image_processor([[image] for image in images], return_tensors="pt")
    encoded = model.model.get_image_features(inputs["pixel_values"], inputs["pixel_attention_mask"], return_dict=True)
    return torch.stack(list(encoded.pooler_output))


def ask(pictures: Sequence[Picture], rng: random.Random) -> list[tuple[int, Question]]:
    """Questions, each with its picture's place."""
    return [
        (owner, question)
        for owner, picture in enumerate(pictures)
        for question in rng.sample(picture.questions, min(QUESTIONS, len(picture.questions)))
    ]


def careless_replies(questions: Sequence[Question], rng: random.Random) -> list[str]:
    """To questions of the kinds `GUESSED`, in a share of `GUESSES`, the answer to a question like it, without notes.

    To all others the right one, noted.
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
    """`many`, `colour`, `number` or `tall`."""
    return question.text.split()[1]


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
