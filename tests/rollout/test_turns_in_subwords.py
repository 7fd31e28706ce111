"""Conversations in tokenizers that join characters: the text between replies is encoded as it is
inside the whole."""

from __future__ import annotations

import string
from typing import Any

import pytest

from rl_core.data.prepare.chat_template import with_reply
from rl_core.rollout.chat.text import ChatFormat
from tests.rollout.chat_templates import SHAPES, Shape

CORPUS = [
    "user: It is 2.\n\n### user\nnext? [INST] one two [/INST] assistant model system observation "
    "tool",
    "next one. \n\nThe answer.\n\n### assistant\nIt is two.\n\n",
] * 20


def byte_level(shape: Shape) -> Any:
    """As GPT-2, Llama 3 and Qwen: joins a full stop with the newlines after it."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    words = Regex(r"\s?[A-Za-z]+|[0-9]| ?[^\sA-Za-z0-9]+\n*|\s+")
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet)
    )
    return wrapped(backend, shape)


def sentence_piece(shape: Shape) -> Any:
    """As Llama 2 and Mistral: spaces are marks, and a text that begins with a word is given one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    alphabet = list(string.printable)
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<unk>"]
    )
    backend.train_from_iterator(CORPUS, trainer)
    return wrapped(backend, shape)


def wrapped(backend: Any, shape: Shape) -> Any:
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerFast

    backend.add_special_tokens([AddedToken(token, special=True) for token in shape.special])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=shape.eos,
        bos_token=shape.bos,
        pad_token=shape.eos,
        additional_special_tokens=[
            token for token in shape.special if token not in (shape.eos, shape.bos)
        ],
        clean_up_tokenization_spaces=False,
        chat_template=shape.template,
    )


@pytest.mark.parametrize("make", [byte_level, sentence_piece])
@pytest.mark.parametrize("name", SHAPES)
def test_text_between_replies_is_encoded_as_inside_the_whole(name: str, make: Any):
    shape = SHAPES[name]
    chat = ChatFormat(make(shape), {})
    assert set(chat.tokenizer.convert_ids_to_tokens(chat.stop_ids)) == shape.stops
    prompt, said = [{"role": "user", "content": "1+1?"}], [{"role": "user", "content": "next?"}]
    end = shape.end or ("<|user|>" if "<|user|>" in shape.stops else "")
    reply = chat.tokenizer.encode(
        f"{shape.gap}It is 2{shape.tail if end else ''}{end}", add_special_tokens=False
    )
    between = chat.observation(said, reply, prompt)
    tokens = chat.encode(prompt) + reply + between
    whole = chat.encode([*with_reply(prompt, "It is 2"), *said])
    assert between == whole[-len(between) :]
    # A reply's own tokens may be others than those of its text.
    assert chat.tokenizer.decode(tokens).replace(" ", "") == chat.tokenizer.decode(whole).replace(
        " ", ""
    )


def test_words_that_mark_a_turn_get_no_space_of_their_own():
    shape = SHAPES["alpaca, whose marks are words"]
    chat = ChatFormat(sentence_piece(shape), {})
    rest = chat.observation([{"role": "user", "content": "next?"}], after=[])
    assert chat.tokenizer.decode([chat.tokenizer.convert_tokens_to_ids("s"), *rest]).startswith(
        "s\n\n### user\nnext?"
    )
