r"""The embedded vision-language model: an Idefics3 (arXiv 2408.12637) of 1.4 million parameters,
and its processor.

A picture of 64 x 64 pixels becomes 16 tokens, one for each cell of the grid that
`rl_core.builtin.data.pictures` draws on: patches of 8 pixels, four of which the connector joins.
Text model and vision tower are small enough to be trained together from scratch
(`rl_core.builtin.models.tiny_vlm_warm_up`). The tokenizer has the words of those pictures'
questions as whole tokens and spells everything else out.
"""

from __future__ import annotations

import re
import string
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rl_core.builtin.data.pictures import COLOURS, SHAPES, SIDE

if TYPE_CHECKING:
    from transformers import (
        Idefics3ForConditionalGeneration,
        Idefics3Processor,
        PreTrainedTokenizerFast,
    )

PATCH = 8
SHUFFLE = 2
IMAGE_TOKENS = (SIDE // PATCH // SHUFFLE) ** 2
IMAGE = "<image>"
PAD, UNKNOWN, START, END = "<|pad|>", "<|unk|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (
    PAD,
    UNKNOWN,
    START,
    END,
    IMAGE,
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
)
MARKS = ("<think>", "</think>", "\\boxed{")
"""Ordinary texts that are single tokens."""
WORDS = (
    "user assistant system How many shapes are there What colour is the number written tall bar "
    "tallest shortest circles squares triangles"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% if message['content'] is "
    "string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}{% if "
    "part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% "
    "endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% "
    "endif %}"
)


def make_processor() -> Idefics3Processor:
    """Return tokenizer, chat template and image processor; pictures of another size are scaled."""
    from transformers import Idefics3ImageProcessorPil, Idefics3Processor

    size = {"longest_edge": SIDE}
    images = Idefics3ImageProcessorPil(
        size=size,
        max_image_size=size,
        do_image_splitting=False,
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    processor = Idefics3Processor(
        images, make_tokenizer(), image_seq_len=IMAGE_TOKENS, chat_template=CHAT_TEMPLATE
    )
    return processor


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer that matches the longest known piece: whole words and marks, anything else
    character by character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({*re.findall(r"[A-Za-z]+", WORDS), *COLOURS, *SHAPES})
    characters = [*string.digits, *string.ascii_letters, *string.punctuation, " ", "\n"]
    spaced = [f" {word}" for word in [*words, *string.digits]]
    pieces = list(dict.fromkeys([*SPECIAL, *characters, *MARKS, *words, *spaced]))
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    backend = Tokenizer(
        models.WordPiece(vocabulary, unk_token=UNKNOWN, continuing_subword_prefix="")
    )
    backend.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"</?think>|\\boxed\{| ?[A-Za-z]+| ?[0-9]|[\s\S]"), "isolated"
    )
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[token for token in SPECIAL if token not in (PAD, UNKNOWN, END)],
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def make_model(tokenizer: Any, seed: int = 0) -> Idefics3ForConditionalGeneration:
    """Return the untrained model. Every linear layer is initialised so that it preserves the scale
    of its input.

    The family's own initialisation (0.02 throughout) makes the image features of such a small tower
    nearly the same for all pictures, and the text model then does not learn to use them.
    """
    from transformers import Idefics3Config, Idefics3ForConditionalGeneration

    vision = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    text = {
        "model_type": "llama",
        "vocab_size": len(tokenizer),
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": 1024,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "tie_word_embeddings": True,
    }
    config = Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),
        scale_factor=SHUFFLE,
        tie_word_embeddings=True,
        vision_config={**vision, "image_size": SIDE, "patch_size": PATCH},
        text_config=text,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Idefics3ForConditionalGeneration(config)
        _initialise(model)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    return model


def _initialise(model: Any) -> None:
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and not name.endswith("lm_head"):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
    tower = model.model.vision_model.embeddings
    nn.init.normal_(tower.patch_embedding.weight, std=1.5 * (3 * PATCH**2) ** -0.5)
    nn.init.normal_(tower.position_embedding.weight, std=0.3)


def save(
    model: Idefics3ForConditionalGeneration, processor: Idefics3Processor, folder: Path
) -> None:
    """Write an ordinary Hugging Face folder."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
