"""Requests of one episode as they were sampled, and the training rows that they make.

A request whose prompt begins with all tokens of an earlier one, its reply included, goes on with
that one's row; what stands between is an observation, which is not trained. Any other request, such
as one of a shortened history, begins a new row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rl_core.data.prepare.chat_template import Message, Tools
from rl_core.data.prepare.items import PlayedItem
from rl_core.models.chat.turns import CannotContinue
from rl_core.models.decoding.request import Reply
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.episode import Episode


@dataclass(eq=False)
class Turn:
    """A request and its reply."""

    number: int
    prompt: list[int]
    former: Turn | None
    """The turn whose tokens the prompt begins with."""
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


class TurnLog:
    """The turns of an episode, in the order of its requests."""

    def __init__(self, chat: ChatFormat, seat: str = "") -> None:
        self.chat, self.seat = chat, seat
        self.turns: list[Turn] = []
        self._tools: list[Mapping[str, object]] = []
        self._messages: list[Message] = []
        """Tools and messages of the conversation that was encoded last, whose request begins
        next."""

    def begin(self, prompt: list[int]) -> Turn:
        """Add a request."""
        found = []
        for turn in self.turns:
            if turn.delivered and prompt[: len(turn.context)] == turn.context:
                found.append(turn)
        former = max(found, key=lambda turn: len(turn.context), default=None)
        self.turns.append(
            Turn(len(self.turns), prompt, former, messages=self._messages, tools=self._tools)
        )
        self.turns[-1].seat = self.seat
        self._messages, self._tools = [], []
        return self.turns[-1]

    def encode(self, messages: list[Message], tools: Tools) -> list[int]:
        """Return the tokens of a conversation. One that goes on with an earlier turn has that one's
        own tokens, since a text may be tokenized in another way than it was sampled."""
        self._messages, self._tools = list(messages), list(tools)
        for turn in reversed(self.turns):
            before = len(turn.messages)
            goes_on = (
                turn.delivered
                and turn.said is not None
                and turn.reply is not None
                and len(messages) > before + 1
                and messages[:before] == turn.messages
                and turn.tools == self._tools
                and _same(messages[before], turn.said)
                and all(one["role"] != "assistant" for one in messages[before + 1 :])
            )
            if not goes_on:
                continue
            assert turn.reply is not None
            try:
                rest = self.chat.observation(
                    messages[before + 1 :], turn.reply.token_ids, turn.messages
                )
            except CannotContinue:  # the template's own rendering begins another row
                break
            return turn.context + rest
        return self.chat.encode(messages, tools)

    def answered(self, messages: list[Message], prompt: list[int], said: Message) -> None:
        """Keep the messages of a chat whose answer is complete."""
        for turn in self.turns:
            if turn.prompt is prompt:
                turn.messages, turn.said = list(messages), said

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
        for former, turn in zip([None, *row], row, strict=False):
            if former is not None:
                between = turn.prompt[len(former.context) :]
                said = turn.messages[len(former.messages) + 1 :]
                told = said or [{"role": "user", "content": self.chat.decode(between)}]
                episode.add_observation(between, told if between else [])
            assert turn.reply is not None
            episode.add_reply(turn.reply, self.chat.decode(turn.reply.token_ids))
        return episode


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
