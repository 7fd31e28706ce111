"""Loading of a tokenizer, in the way that every part of the project uses it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rl_core.data.prepare.chat_template import ChatTemplate
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import ModelError
from rl_core.models.checks.can_train import too_many_words

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, ProcessorMixin

    from rl_core.data.prepare.chat_template import Message

CHAT_TEMPLATE_FILE = "chat_template.json"
"""File in which processors keep the template, besides `chat_template.jinja`, which tokenizers read
as well."""


def load_tokenizer(source: str) -> Tokenizer:
    """Load the tokenizer of a located model, with padding on the left.

    Raises: ModelError when there is none, or it has no chat template or end-of-sequence token.
    """
    from transformers import AutoTokenizer

    name, _, revision = source.partition("@")
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=revision or None)
        if tokenizer.chat_template is None:
            tokenizer.chat_template = _template_of_processor(name, revision)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"model.path {source}: cannot load a tokenizer: {_first_line(error)}"
        ) from error
    return _checked(tokenizer, source)


def _template_of_processor(name: str, revision: str) -> str | None:
    """Return the template that multimodal models keep in a file of their processor, which may need
    more libraries to load."""
    from transformers.utils.hub import cached_file

    path = cached_file(
        name,
        CHAT_TEMPLATE_FILE,
        revision=revision or None,
        _raise_exceptions_for_missing_entries=False,
    )
    if path:
        return json.loads(Path(path).read_text(encoding="utf-8"))["chat_template"]
    return None


def load_processor(source: str) -> ProcessorMixin:
    """Load the processor of a located vision-language model; its tokenizer is as in
    `load_tokenizer`.

    Raises: ModelError when there is none, or a library it needs is missing (torchvision, for some).
    """
    from transformers import AutoProcessor

    name, _, revision = source.partition("@")
    try:
        processor = AutoProcessor.from_pretrained(name, revision=revision or None)
    except (OSError, ValueError, ImportError) as error:
        raise ModelError(
            f"model.path {source}: cannot load a processor: {_first_line(error)}"
        ) from error
    if getattr(processor, "image_processor", None) is None:
        raise ModelError(f"model.path {source}: its processor takes no pictures")
    if processor.tokenizer.chat_template is None:
        processor.tokenizer.chat_template = processor.chat_template
    _checked(processor.tokenizer, source)
    return processor


def _checked(tokenizer: PreTrainedTokenizerBase, source: str) -> Tokenizer:
    if tokenizer.chat_template is None:
        raise ModelError(
            f"model.path {source}: the tokenizer has no chat template; use an instruction-tuned "
            "model"
        )
    if tokenizer.eos_token_id is None:
        raise ModelError(f"model.path {source}: the tokenizer has no end-of-sequence token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "left"
    # transformers declares the ids of a tokenizer, and what it returns, as anything.
    return cast(Tokenizer, tokenizer)


def check_words(tokenizer: Tokenizer, model: PreTrainedModel, path: str) -> int | None:
    """Check that every word has a row in the model's embedding, which may have more rows than there
    are words.

    Special tokens that a model never reads may lie beyond it (Gemma 3 of 1B has a token for images
    that it does not support); words of texts, and tokens that begin, pad or end rows, may not.
    Returns: the number of rows, if special tokens lie beyond them. Raises: ModelError, with both
    numbers.
    """
    embeddings: Any = model.get_input_embeddings()
    num_rows: int = embeddings.weight.shape[0]
    added = tokenizer.added_tokens_decoder
    words = []
    for number in tokenizer.get_vocab().values():
        if number not in added or not added[number].special:
            words.append(number)
    ends = getattr(model.generation_config, "eos_token_id", None)
    used = [*(ends if isinstance(ends, list | tuple) else [ends])]
    used += [
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
        tokenizer.unk_token_id,
    ]
    last = max([*words, *(number for number in used if number is not None)], default=-1)
    if last >= num_rows:
        raise ModelError(too_many_words(f"model.path {path}", last, num_rows))
    if max(added, default=-1) >= num_rows:
        return num_rows
    return None


def encode_chat(
    tokenizer: Tokenizer,
    messages: list[Message],
    template_kwargs: dict[str, object],
) -> list[int]:
    """Return token ids of a conversation, ending where the assistant's reply begins, or continues
    after a prefill."""
    text = ChatTemplate(tokenizer, template_kwargs).prompt(messages)
    return tokenizer.encode(text, add_special_tokens=False)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
