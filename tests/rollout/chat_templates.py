# ruff: noqa: RUF001 (marks of real models)
"""Chat templates in the shapes that models have them, and tokenizers with their marks as special
tokens."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any

ROUND = "{% for m in messages %}"
ALTERNATE = (
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user, assistant') }}{% endif %}{% endfor %}"
)
PLAIN_ROLES = (
    "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('there is no role ' ~ m.role) }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Shape:
    """One kind of template. `stops` and `end` are what is right for it."""

    template: str
    special: tuple[str, ...]
    eos: str
    stops: frozenset[str]
    """Tokens that it writes after a reply, the tokenizer's own eos beside them."""
    end: str | None
    """The token that ends the assistant's turn."""
    gap: str = ""
    """What the template writes between its generation prompt and a reply, which a reply therefore
    begins with."""
    bos: str | None = None
    tail: str = ""
    """What it writes between a reply and the end of its turn, which a reply therefore ends with."""


def chatml(system: str = "") -> str:
    """Turns between `<|im_start|>` and `<|im_end|>`. Args: system: what is said where no system
    message is."""
    default = (
        "{% if messages[0].role != 'system' %}<|im_start|>system\n"
        + system
        + "<|im_end|>\n{% endif %}"
        if system
        else ""
    )
    return (
        default
        + ROUND
        + "{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content ~ '<|im_end|>' ~ '\n' }}{% endfor %}"
        + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


IM = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
LLAMA = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
)
GLM = (
    "<|endoftext|>",
    "[gMASK]",
    "<sop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
)
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>")

SHAPES = {
    "chatml": Shape(chatml(), IM, "<|im_end|>", frozenset({"<|im_end|>"}), "<|im_end|>"),
    "chatml of a base model": Shape(
        chatml("You help."),
        IM,
        "<|endoftext|>",
        frozenset({"<|im_end|>", "<|endoftext|>"}),
        "<|im_end|>",
    ),
    "chatml whose last turn stays open": Shape(
        "{% for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' ~ m.content }}{% if not "
        "loop.last or add_generation_prompt %}{{ '<|im_end|>\n' }}{% endif %}{% endfor %}{% if "
        "add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        IM,
        "<|endoftext|>",
        frozenset({"<|im_end|>", "<|endoftext|>"}),
        "<|im_end|>",
    ),
    "llama 3": Shape(
        "{{ bos_token }}{% if messages[0].role != 'system' %}"
        "{{ '<|start_header_id|>system<|end_header_id|>\n\nToday: ' }}"
        "{{ strftime_now('%d %b %Y') ~ '<|eot_id|>' }}{% endif %}"
        + ROUND
        + (
            "{{ '<|start_header_id|>' ~ m.role ~ '<|end_header_id|>\n\n' ~ (m.content | trim) ~ "
            "'<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ "
            "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
        ),
        LLAMA,
        "<|end_of_text|>",
        frozenset({"<|eot_id|>", "<|end_of_text|>"}),
        "<|eot_id|>",
        bos="<|begin_of_text|>",
    ),
    "glm 4": Shape(
        "[gMASK]<sop>"
        + ROUND
        + (
            "{% set mark = 'observation' if m.role == 'tool' else m.role %}{{ '<|' ~ mark ~ "
            "'|>\n' ~ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% "
            "endif %}"
        ),
        GLM,
        "<|endoftext|>",
        frozenset({"<|user|>", "<|observation|>", "<|endoftext|>"}),
        None,
        gap="\n",
    ),
    "chatglm 3": Shape(
        "[gMASK]<sop>" + ROUND + "{{ '<|' ~ m.role ~ '|>\n ' ~ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n ' }}{% endif %}",
        GLM,
        "<|endoftext|>",
        frozenset({"<|user|>", "<|observation|>", "<|endoftext|>"}),
        None,
    ),
    "gemma": Shape(
        "{{ bos_token }}"
        + PLAIN_ROLES
        + ALTERNATE
        + ROUND
        + "{{ '<start_of_turn>' ~ ('model' if m.role == 'assistant' "
        "else m.role) ~ '\n' ~ (m.content | trim) ~ '<end_of_turn>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}",
        ("<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"),
        "<eos>",
        frozenset({"<end_of_turn>", "<eos>"}),
        "<end_of_turn>",
        bos="<bos>",
    ),
    "mistral": Shape(
        "{{ bos_token }}"
        + PLAIN_ROLES
        + ALTERNATE
        + ROUND
        + (
            "{% if m.role == 'user' %}{{ '[INST] ' ~ m.content ~ ' [/INST]' }}{% else %}{{ ' ' ~ "
            "m.content ~ eos_token }}{% endif %}{% endfor %}"
        ),
        ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
        "</s>",
        frozenset({"</s>"}),
        "</s>",
        gap=" ",
        bos="<s>",
    ),
    "llama 2": Shape(
        ALTERNATE
        + ROUND
        + "{% if m.role == 'user' %}{{ bos_token ~ '[INST] ' ~ (m.content | trim) ~ ' [/INST]' }}"
        "{% else %}{{ ' ' ~ (m.content | trim) ~ ' ' ~ eos_token }}{% endif %}{% endfor %}",
        ("<s>", "</s>"),
        "</s>",
        frozenset({"</s>"}),
        "</s>",
        gap=" ",
        bos="<s>",
        tail=" ",
    ),
    "deepseek": Shape(
        "{{ bos_token }}"
        + ROUND
        + "{% if m.role == 'assistant' %}{{ '<｜Assistant｜>' ~ m.content ~ eos_token }}"
        "{% else %}{{ '<｜User｜>' ~ m.content }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}{% endif %}",
        DEEPSEEK,
        "<｜end▁of▁sentence｜>",
        frozenset({"<｜end▁of▁sentence｜>"}),
        "<｜end▁of▁sentence｜>",
        bos="<｜begin▁of▁sentence｜>",
    ),
    "phi 3": Shape(
        ROUND + "{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '<|end|>\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}",
        ("<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"),
        "<|endoftext|>",
        frozenset({"<|end|>", "<|endoftext|>"}),
        "<|end|>",
    ),
    "zephyr": Shape(
        ROUND + "{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ eos_token ~ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}",
        ("<s>", "</s>"),
        "</s>",
        frozenset({"</s>"}),
        "</s>",
        gap="\n",
        bos="<s>",
    ),
    "idefics 3": Shape(
        "<|im_start|>"
        + ROUND
        + (
            "{{ m.role | capitalize ~ (':' if m.content[0].type == 'image' else ': ') }}{% for "
            "part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% elif part.type == "
            "'image' %}<image>{% endif %}{% endfor %}{{ '<end_of_utterance>\n' }}{% endfor %}{% "
            "if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
        ),
        ("<|im_start|>", "<end_of_utterance>", "<|endoftext|>", "<image>"),
        "<|endoftext|>",
        frozenset({"<end_of_utterance>", "<|endoftext|>"}),
        "<end_of_utterance>",
        gap=" ",
    ),
    "vicuna": Shape(
        ROUND
        + (
            "{{ m.role | upper ~ ': ' ~ m.content ~ (eos_token if m.role == 'assistant' else ' "
            "') }}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
        ),
        ("<s>", "</s>"),
        "</s>",
        frozenset({"</s>"}),
        "</s>",
        gap=" ",
    ),
    "alpaca, whose marks are words": Shape(
        ROUND + "{{ '### ' ~ m.role ~ '\n' ~ m.content ~ '\n\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### assistant\n' }}{% endif %}",
        ("<s>", "</s>"),
        "</s>",
        frozenset({"</s>"}),
        None,
    ),
}

QWEN_3 = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set "
    "ns.last = loop.index0 %}{% endif %}{% endfor %}"
    + ROUND
    + (
        "{% set said = m.content %}{% if m.role == 'assistant' and loop.index0 < ns.last %}{% "
        "set said = said.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ '<|im_start|>' ~ "
        "m.role ~ '\n' ~ said ~ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ "
        "'<|im_start|>assistant\n' }}{% if enable_thinking is defined and not enable_thinking "
        "%}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
    )
)
"""Leaves out the reasoning of earlier turns; without thinking, opens a reply with an empty block
that it drops."""


def tokenizer_of(shape: Shape, *more_special: str) -> Any:
    """A character tokenizer with the shape's marks, as a real model's: a token each, special, and
    the template."""
    return character_tokenizer(
        shape.template, (*shape.special, *more_special), shape.eos, shape.bos
    )


def character_tokenizer(
    template: str, special: tuple[str, ...], eos: str, bos: str | None = None
) -> Any:
    """One token per printable character, and one for each special token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = [*string.digits, *string.ascii_letters, *string.punctuation, " ", "\n"]
    vocabulary = {token: index for index, token in enumerate(["<pad>", "<unk>", *characters])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token=eos,
        bos_token=bos,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        chat_template=template,
    )
