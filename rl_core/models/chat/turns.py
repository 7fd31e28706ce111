r"""End and beginning of turns in a chat template, found by rendering probe conversations and taking
them apart.

    prompt:  <|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n
    reply:   MARK
    rest:    <|im_end|>\n<|im_start|>user\nNEXT<|im_end|>\n<|im_start|>assistant\n

The first control token of the rest is where the model stops: the end of its turn, or, in templates
without one (GLM-4), the mark that opens the next role's turn. A conversation that ends after the
reply tells the two apart.

A template supports several turns if its rendering extends the earlier rendering (TRL calls that
prefix-preserving). Rollouts append tokens, so with any other template the policy would be trained
on conversations that the template never writes; those are refused with the finding.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rl_core.data.prepare.chat_template import ChatTemplate, Message, Tools, with_reply
from rl_core.data.prepare.control_tokens import special_ids
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import ModelError

ROLES = ("user", "tool", "observation")
"""Roles that may speak after the assistant; templates refuse those they do not know."""
FIRST: list[Message] = [{"role": "user", "content": "."}]
"""Beginning of probe conversations."""
NEXT = "\u241fnext\u241f"
THOUGHT, ANSWER = "\u241fthought\u241f", "\u241fanswer\u241f"
THINKING = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
NUM_TURNS = 3
NAMED = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")
"""Special tokens with a name in transformers."""


@dataclass(frozen=True)
class Turns:
    """Properties of a template's turns."""

    stop_ids: frozenset[int]
    """Tokens that it writes first after an assistant's content."""
    end_id: int | None
    """Token that ends an assistant's turn; None if the next role's mark does."""
    opening_ids: frozenset[int]
    """Tokens among `stop_ids` that open another role's turn."""
    control_ids: frozenset[int]
    """Special tokens that are not text: begin, end and padding, and the tokens around contents."""
    cannot: str = ""
    """Reason why it does not support several turns; empty if it does."""
    rewrites: str = ""
    """Changes that it makes to earlier turns; empty if none."""


class CannotContinue(ModelError):
    """A chat template cannot continue a conversation; the message says what it does instead."""


def mark_of(turn: int) -> str:
    """Return the placeholder of a reply in a rendered conversation.

    Args: turn: number of the reply.
    """
    return f"\u241freply {turn}\u241f"


def continuation(
    template: ChatTemplate,
    history: Sequence[Message],
    messages: Sequence[Message],
    *,
    strict: bool,
    tools: Tools = (),
) -> str:
    """Return the text between a reply and the next one, as the template renders the conversation.

    Args: history: the conversation before the reply. messages: messages after it. strict: refuse a
    template that changes the text before the reply. tools: functions that the prompt shows.
    Raises: CannotContinue.
    """
    mark = mark_of(len(history))
    try:
        before = template.prompt(history, tools)
        whole = template.prompt([*with_reply(history, mark), *messages], tools)
    # Templates run as Jinja and raise what they like.
    except Exception as error:
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise CannotContinue(
            f"the chat template refuses a turn of role {roles} after a reply: {error}"
        ) from error
    if (times := whole.count(mark)) != 1:
        does = f"writes {times} times" if times else "leaves out"
        raise CannotContinue(
            f"the chat template {does} the assistant's earlier turns; it cannot carry several turns"
        )
    head, _, rest = whole.partition(mark)
    # Some templates write something between an opening and a reply (Idefics3 a space); sampled
    # replies contain it themselves.
    if strict and not (head.startswith(before) and not head[len(before) :].strip()):
        raise CannotContinue(
            f"the chat template rewrites what was said before: {_difference(before, head)}"
        )
    return rest


def derive_turns(template: ChatTemplate, tokenizer: Tokenizer) -> Turns:
    """Find the properties of a template's turns; never raises, since a template that no probe fits
    may still open one turn."""
    openings = {role: _first_control(tokenizer, _between(template, role)) for role in ROLES}
    closing = _first_control(tokenizer, _closing(template))
    if closing not in openings.values() and _ignores_generation(template):
        # In such a template, the tokens after the last reply open the next one.
        closing = None
    found = {one for one in (*openings.values(), closing) if one is not None}
    opening_ids = set()
    for role, one in openings.items():
        if (
            one is not None
            and one != closing
            and _opens(template, tokenizer, role, openings["user"])
        ):
            opening_ids.add(one)
    ends = []
    for one in (closing, openings["user"]):
        if one is not None and one not in opening_ids:
            ends.append(one)
    cannot = _refusal(template, strict=False)
    return Turns(
        stop_ids=frozenset(found),
        end_id=ends[0] if ends else None,
        opening_ids=frozenset(opening_ids),
        control_ids=frozenset(_named_ids(tokenizer) | _written_ids(template, tokenizer) | found),
        cannot=cannot,
        rewrites="" if cannot else _refusal(template, strict=True) or _lost_reasoning(template),
    )


def _between(template: ChatTemplate, role: str) -> str:
    """Return the text between a reply and the content of the next message; empty if the template
    refuses the role."""
    try:
        rest = continuation(template, FIRST, [{"role": role, "content": NEXT}], strict=False)
    except CannotContinue:
        return ""
    if NEXT in rest:
        return rest.partition(NEXT)[0]
    return ""


def _closing(template: ChatTemplate) -> str:
    """Return the text after a reply at the end of a conversation."""
    mark = mark_of(len(FIRST))
    return _rendered(lambda: template.conversation(with_reply(FIRST, mark))).partition(mark)[2]


def _ignores_generation(template: ChatTemplate) -> bool:
    """Return True if the text is the same with and without a generation prompt."""
    return _rendered(lambda: template.conversation(FIRST)) == _rendered(
        lambda: template.prompt(FIRST)
    )


def _opens(template: ChatTemplate, tokenizer: Tokenizer, role: str, user_token: int | None) -> bool:
    """Return True if the text between a reply and this role is the opening of the role's turn and
    nothing before it.

    A conversation that starts with the role has the opening alone. If the role cannot start one, a
    token that differs from the user's must be an opening: an end would be the same whoever speaks
    next.
    """
    between = _from_first_control(tokenizer, _between(template, role))
    begun = _rendered(lambda: template.prompt([{"role": role, "content": NEXT}]))
    if NEXT in begun:
        return _encoded(tokenizer, begun.partition(NEXT)[0])[-len(between) :] == between
    return between[0] != user_token


def _refusal(template: ChatTemplate, *, strict: bool) -> str:
    """Return the reason why a conversation of several turns fails; empty if it does not."""
    history = FIRST
    for turn in range(NUM_TURNS):
        said: list[Message] = [{"role": "user", "content": f"{NEXT} {turn}"}]
        try:
            continuation(template, history, said, strict=strict)
        except CannotContinue as error:
            return str(error)
        history = [*with_reply(history, mark_of(len(history))), *said]
    return ""


def _lost_reasoning(template: ChatTemplate) -> str:
    told = [*with_reply(FIRST, THINKING), {"role": "user", "content": NEXT}]
    whole = _rendered(lambda: template.prompt(told))
    if THOUGHT in whole and ANSWER in whole:
        return ""
    return (
        "the chat template leaves out the reasoning (<think> ... </think>) of the assistant's "
        "earlier turns"
    )


def _rendered(render: Callable[[], str]) -> str:
    """Return a rendering; empty if the template refuses it."""
    try:
        return render()
    # Templates run as Jinja and raise what they like.
    except Exception:
        return ""


def _difference(before: str, head: str) -> str:
    same = next(
        (at for at, (a, b) in enumerate(zip(before, head, strict=False)) if a != b),
        min(len(before), len(head)),
    )
    was, now = before[same : same + 60], head[same : same + 60]
    return f"{was!r} became {now!r}"


def added_ids(tokenizer: Any) -> frozenset[int]:
    """Return the ids of added tokens, special or not, which are never part of a word."""
    return frozenset(tokenizer.get_added_vocab().values()) | frozenset(
        special_ids(tokenizer).values()
    )


def first_control(
    tokenizer: Tokenizer, token_ids: Sequence[int], added: Collection[int]
) -> int | None:
    """Return the index of the first token that is not whitespace, if it is one of `added`, else
    None."""
    for place, one in enumerate(token_ids):
        if str(tokenizer.decode([one])).strip():
            return place if one in added else None
    return None


def _from_first_control(tokenizer: Tokenizer, text: str) -> list[int]:
    token_ids = _encoded(tokenizer, text)
    place = first_control(tokenizer, token_ids, added_ids(tokenizer))
    return [] if place is None else token_ids[place:]


def _first_control(tokenizer: Tokenizer, text: str) -> int | None:
    return next(iter(_from_first_control(tokenizer, text)), None)


def _named_ids(tokenizer: Tokenizer) -> set[int]:
    ids = {getattr(tokenizer, f"{name}_token_id", None) for name in NAMED}
    return {one for one in ids if one is not None}


def _written_ids(template: ChatTemplate, tokenizer: Tokenizer) -> set[int]:
    """Return the special tokens around the contents of messages, without those that only open a
    reply, such as `<think>`."""
    system: list[Message] = [{"role": "system", "content": "."}]
    tried = [[*with_reply([*start, *FIRST], "."), *FIRST] for start in (system, [])] + [FIRST]
    texts = [_rendered(lambda told=told: template.conversation(told)) for told in tried]
    # The longest conversation that the template accepts: some have no system message, some no
    # second turn.
    text = next((text for text in texts if text), "")
    return set(_encoded(tokenizer, text)) & set(special_ids(tokenizer).values())


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)
