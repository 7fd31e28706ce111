"""Tokens that end a reply, for sampling and for users of the exported model."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

from rl_core.data.prepare.chat_template import ChatTemplate
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.models.chat.turns import derive_turns
from schemas.recipe import ModelConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel, ProcessorMixin


class Chatting(Protocol):
    """The part of a model's bundle that says how a conversation is written."""

    config: ModelConfig
    processor: ProcessorMixin | None
    tokenizer: Tokenizer


def configured_stop_ids(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the end-of-sequence tokens of a model's `generation_config`, one or several."""
    configured = model.generation_config.eos_token_id
    several = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({one for one in several if one is not None}))


def sampled_stop_ids(model: PreTrainedModel, bundle: Chatting) -> tuple[int, ...]:
    """Return the tokens that end a reply in rollouts: the model's own, the tokenizer's, and those
    the chat template writes after one."""
    template = ChatTemplate(
        bundle.processor or bundle.tokenizer, bundle.config.chat_template_kwargs
    )
    written = derive_turns(template, bundle.tokenizer).stop_ids
    own: Any = bundle.tokenizer.eos_token_id
    return tuple(sorted({own, *written, *configured_stop_ids(model)}))


def record_stop_ids(model: PreTrainedModel, stop_ids: Collection[int]) -> None:
    """Write the tokens that end a reply into a model's `generation_config`, so that others stop
    where training did."""
    several = sorted(stop_ids)
    model.generation_config.eos_token_id = several if len(several) > 1 else several[0]
