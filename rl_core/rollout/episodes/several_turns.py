"""Early check of multi-turn environments against a chat template that does not support several
turns."""

from __future__ import annotations

from collections.abc import Sequence

from rl_core.data.prepare.chat_template import ChatTemplate
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.models.chat.tokenizer import load_processor, load_tokenizer
from rl_core.models.chat.turns import CannotContinue
from rl_core.models.family import sees_pictures
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.tools import check_shows_tools
from schemas.recipe import Recipe


def check_several_turns(chat: ChatFormat, env_ids: Sequence[str]) -> None:
    """Check that the template supports several turns if any environment needs them.

    Args: env_ids: multi-turn environments. Rows that name others are only checked at their second
    turn.
    Raises: CannotContinue, naming the first, when the template does not support several turns.
    """
    if not env_ids:
        return
    try:
        chat.check_several_turns()
    except CannotContinue as refusal:
        raise CannotContinue(f"environment {env_ids[0]} has several turns: {refusal}") from refusal


def check_recipe(recipe: Recipe, source: str, env_ids: Sequence[str]) -> None:
    """Check a recipe before any worker starts.

    Args: source: located model, of which only the tokenizer is loaded. Raises: CannotContinue,
    ModelError.
    """
    kwargs, rollout = recipe.model.chat_template_kwargs, recipe.rollout
    processor = load_processor(source) if sees_pictures(source) else None
    tokenizer: Tokenizer = load_tokenizer(source) if processor is None else processor.tokenizer
    chat = ChatFormat(
        tokenizer,
        kwargs,
        keep_special_tokens=rollout.keep_special_tokens,
        keep_earlier_turns=rollout.episodes.keep_earlier_turns,
        template=ChatTemplate(processor or tokenizer, kwargs),
    )
    check_several_turns(chat, env_ids)
    check_shows_tools(chat, recipe.environments)
