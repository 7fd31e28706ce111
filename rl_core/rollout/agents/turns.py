"""Requests of one episode as they were sampled, and the training rows that they make.

A request whose prompt begins with all tokens of an earlier one, its reply included, goes on with
that one's row; what stands between is an observation, which is not trained. Any other request, such
as one of a shortened history, begins a new row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rl_core.data.prepare.chat_template import Message, Tools
from rl_core.data.prepare.items import PlayedItem
from rl_core.models.chat.turns import CannotContinue
from rl_core.models.decoding.request import Reply
from rl_core.models.media import PromptMedia, gone_on
from rl_core.rollout.chat.observed import shown_pictures
from rl_core.rollout.chat.text import ChatFormat, Encoded
from rl_core.rollout.episodes.episode import Episode


@dataclass(eq=False)
class Turn:
    """A request and its reply."""

    number: int
    prompt: list[int]
    former: Turn | None
    """The turn whose tokens the prompt begins with."""
    shown: tuple[PromptMedia, ...] = ()
    """Pictures among the prompt's tokens; each turn of a row adds its own."""
    pictures: tuple[bytes, ...] = ()
    """Digest of each of them."""
    reply: Reply | None = None
    """None until it is sampled."""
    delivered: bool = False
    """True if the agent was given the whole reply."""
    messages: list[Message] = field(default_factory=list)
    said: Message | None = None
    """The assistant's message of a chat; None of a completion."""
    tools: list[Mapping[str, object]] = field(default_factory=list)
    seat: str = ""
    """Name of the seat that is asked; empty where there is one for all requests."""

    @property
    def context(self) -> list[int]:
        """Tokens of prompt and reply."""
        if self.reply is None:
            return self.prompt
        return self.prompt + self.reply.token_ids

    @property
    def media(self) -> PromptMedia | None:
        """All pictures among the prompt's tokens. Raises: ModelError when they cannot be
        stacked."""
        return gone_on(*self.shown)


@dataclass(frozen=True)
class Conversation(Encoded):
    """An encoded conversation of a client; `media` are the pictures that `basis` has not shown."""

    basis: Turn | None = None
    """The turn with whose tokens it goes on; None if the template wrote all of it."""
    messages: list[Message] = field(default_factory=list)
    tools: list[Mapping[str, object]] = field(default_factory=list)


class TurnLog:
    """The turns of an episode, in the order of its requests."""

    def __init__(self, chat: ChatFormat, seat: str = "") -> None:
        self.chat, self.seat = chat, seat
        self.turns: list[Turn] = []

    def begin(self, prompt: Encoded) -> Turn:
        """Add a request: a `Conversation`, or tokens alone."""
        told = prompt if isinstance(prompt, Conversation) else Conversation(prompt.token_ids)
        before = 0 if told.basis is None else len(told.basis.messages)
        pictures = () if told.basis is None else told.basis.pictures
        pictures += tuple(map(_digest, shown_pictures(told.messages[before:])))
        tokens = told.token_ids
        found = []
        for turn in self.turns:
            # Other pictures may have as many tokens.
            if (
                turn.delivered
                and tokens[: len(turn.context)] == turn.context
                and pictures[: len(turn.pictures)] == turn.pictures
            ):
                found.append(turn)
        former = max(found, key=lambda turn: len(turn.context), default=None)
        turn = Turn(len(self.turns), tokens, former, pictures=pictures, seat=self.seat)
        turn.messages, turn.tools = told.messages, told.tools
        turn.shown = () if told.basis is None else told.basis.shown
        turn.shown += () if told.media is None else (told.media,)
        self.turns.append(turn)
        return turn

    def encode(self, messages: list[Message], tools: Tools) -> Conversation:
        """Return the tokens of a conversation. One that goes on with an earlier turn has that one's
        own tokens, since a text may be tokenized in another way than it was sampled.

        Raises: DataError when a picture cannot be read, ModelError when it cannot be stacked with
        earlier ones.
        """
        offered = list(tools)
        for turn in reversed(self.turns):
            before = len(turn.messages)
            goes_on = (
                turn.delivered
                and turn.said is not None
                and turn.reply is not None
                and len(messages) > before + 1
                and messages[:before] == turn.messages
                and turn.tools == offered
                and _same(messages[before], turn.said)
                and all(one["role"] != "assistant" for one in messages[before + 1 :])
            )
            if not goes_on:
                continue
            found = self._continued(turn, messages)
            if found is None:  # the template's own rendering begins another row
                break
            # The earlier messages as that turn has them: pictures are kept once.
            told = [*turn.messages, *messages[before:]]
            return Conversation(turn.context + found.token_ids, found.media, turn, told, offered)
        whole = self.chat.conversation(messages, tools)
        return Conversation(whole.token_ids, whole.media, None, list(messages), offered)

    def _continued(self, turn: Turn, messages: list[Message]) -> Encoded | None:
        """Return what follows a turn's tokens; None where nothing can."""
        assert turn.reply is not None
        history, rest = turn.messages, messages[len(turn.messages) + 1 :]
        if shown_pictures(rest):
            shown = sum(one.num_tokens for one in turn.shown)
            # What a reply wrote itself would be read as the place of the next picture.
            if self.chat.places(turn.context) != shown:
                return None
        try:
            found = self.chat.observed(
                self.chat.of_client(rest),
                turn.reply.token_ids,
                self.chat.said(self.chat.of_client(history)),
            )
        except CannotContinue:
            return None
        # Before anything waits for them: pictures that cannot be stacked are this request's fault.
        gone_on(*turn.shown, found.media)
        return found

    def answered(self, messages: list[Message], prompt: list[int], said: Message) -> None:
        """Keep the messages of a chat whose answer is complete."""
        for turn in self.turns:
            if turn.prompt is prompt:
                turn.messages, turn.said = turn.messages or list(messages), said

    def rows(self) -> list[list[Turn]]:
        """Return the delivered turns of each training row."""
        rows: list[list[Turn]] = []
        ends: dict[Turn, list[Turn]] = {}
        for turn in self.turns:
            if not turn.delivered:
                continue
            row = None if turn.former is None else ends.pop(turn.former, None)
            if row is None:
                row = []
                rows.append(row)
            row.append(turn)
            ends[turn] = row
        return rows

    def episodes(self, item: PlayedItem, group: int) -> list[Episode]:
        """Return the training rows as episodes without a reward."""
        return [self._episode(row, item, group) for row in self.rows()]

    def _episode(self, row: Sequence[Turn], item: PlayedItem, group: int) -> Episode:
        episode = Episode(item, group, prompt_ids=list(row[0].prompt), done=True)
        episode.media = row[-1].media
        for former, turn in zip([None, *row], row, strict=False):
            if former is not None:
                between = turn.prompt[len(former.context) :]
                said = turn.messages[len(former.messages) + 1 :]
                told = said or [{"role": "user", "content": self.chat.decode(between)}]
                episode.add_observation(between, told if between else [])
            assert turn.reply is not None
            episode.add_reply(turn.reply, self.chat.decode(turn.reply.token_ids))
        return episode


def _digest(picture: str) -> bytes:
    return hashlib.blake2b(picture.encode(), digest_size=16).digest()


def _same(message: Message, said: Message) -> bool:
    """Return True if an agent's message is what the model was understood to say."""
    return (
        message["role"] == "assistant"
        and (message.get("content") or "") == (said.get("content") or "")
        and _calls(message) == _calls(said)
    )


def _calls(message: Message) -> list[tuple[str, object]]:
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return [(one["name"], _arguments(one["arguments"])) for one in calls]


def _arguments(given: object) -> object:
    if not isinstance(given, str):
        return given
    try:
        return json.loads(given)
    except ValueError:  # as the model wrote it
        return given
