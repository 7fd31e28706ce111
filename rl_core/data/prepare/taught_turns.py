"""Tokens of a conversation, and which of them the assistant says.

A template with `{% generation %}` marks them itself. For any other, the text before each turn of
the assistant and the text up to its end are rendered, too: both must be beginnings of the whole
text, and their tokens beginnings of the whole text's tokens. Where they are not, what is trained
would differ from what a rollout reads and writes, so the conversation is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rl_core.data.prepare.chat_template import ChatTemplate, Conversation
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import DataError
from schemas.sections.sft import TaughtTurns

NUM_SHOWN = 40
"""Characters of a text in messages."""


@dataclass(frozen=True)
class TaughtTokens:
    """Tokens of a conversation's text, with the places of the taught turns."""

    ids: list[int]
    turns: list[tuple[int, int]]
    """First token of each turn, and the one after its last; at least one turn."""


def taught_tokens(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    prompt: Conversation,
    completion: Conversation,
    turns: TaughtTurns = TaughtTurns.ALL,
) -> TaughtTokens:
    """Return the tokens of a conversation and the turns of the assistant to learn.

    Args: prompt: messages that are read only. completion: messages whose turns of the assistant are
    taught, of which the first and the last are.
    Raises: DataError with the reason when the chat template or the tokenizer does not keep turns
    apart.
    """
    messages = [*prompt, *completion]
    places = []
    for place in range(len(prompt), len(messages)):
        if messages[place]["role"] == "assistant":
            places.append(place)
    wanted = places if turns is TaughtTurns.ALL else places[-1:]
    if template.marks_answers:
        return _marked(tokenizer, template, messages, wanted)
    return _compared(tokenizer, template, messages, wanted)


def _compared(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Conversation,
    wanted: Sequence[int],
) -> TaughtTokens:
    whole = template.conversation(messages)
    ids = _encoded(tokenizer, whole)
    found = []
    for place in wanted:
        before = template.prompt(messages[:place])
        until = template.conversation(messages[: place + 1])
        for text in (before, until):
            _check_begins(whole, text, place)
        start, stop = (_num_tokens(tokenizer, text, ids, place) for text in (before, until))
        if start >= stop:
            raise DataError(f"the chat template leaves out the assistant's message {place}")
        found.append((start, stop))
    return TaughtTokens(ids, found)


def _check_begins(whole: str, text: str, place: int) -> None:
    if whole.startswith(text):
        return
    same = next((at for at, (a, b) in enumerate(zip(whole, text, strict=False)) if a != b), 0)
    was, now = text[same : same + NUM_SHOWN], whole[same : same + NUM_SHOWN]
    raise DataError(
        f"the chat template renders the conversation up to message {place} as {was!r}, where the "
        f"whole has {now!r}, so that it is not known what to train; set sft.turns: last, or change "
        "model.chat_template_kwargs"
    )


def _num_tokens(tokenizer: Tokenizer, text: str, ids: Sequence[int], place: int) -> int:
    own = _encoded(tokenizer, text)
    if own != list(ids[: len(own)]):
        raise DataError(
            f"the tokenizer joins the text on both sides of {text[-NUM_SHOWN:]!r} (message "
            f"{place}) to one token, so that a reply would begin or end within it; take out the "
            "white space there"
        )
    return len(own)


def _marked(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Conversation,
    wanted: Sequence[int],
) -> TaughtTokens:
    ids, mask = template.answer_mask(messages)
    if ids != _encoded(tokenizer, template.conversation(messages)):
        raise DataError("the chat template's marked tokens are not those of its text")
    edges = [0, *mask, 0]
    changes = [at for at, (one, other) in enumerate(pairwise(edges)) if one != other]
    runs = list(zip(changes[::2], changes[1::2], strict=True))
    places = [place for place, one in enumerate(messages) if one["role"] == "assistant"]
    if len(runs) != len(places):
        raise DataError(
            f"the chat template marks {len(runs)} turns of the assistant in a conversation with "
            f"{len(places)}"
        )
    of_place = dict(zip(places, runs, strict=True))
    return TaughtTokens(ids, [of_place[place] for place in wanted])


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))
