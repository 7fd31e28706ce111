"""One conversation, turn by turn, as tokens."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

import numpy as np

from rl_core.data.prepare.items import PlayedItem
from rl_core.envs.base import BaseTextEnv, Message
from rl_core.models.decoding.request import Reply, StopReason
from rl_core.models.decoding.stop_strings import StopStrings
from rl_core.models.decoding.token_choice import Support
from rl_core.models.media import PromptMedia
from rl_core.rollout.episodes.env_calls import EnvCall
from rl_core.rollout.episodes.unfinished import Begun

LONGEST_READ = 500
"""Characters of what an environment read that are kept; test cases and pages may be long."""


class Said(TypedDict):
    """A message after the prompt."""

    role: str
    content: object
    num_tokens: int
    """Number of tokens; an observation of several messages has all of them at its first."""
    reward: float | None
    """Reward of a reply; None for an observation."""
    seconds: float
    """From the episode's start to the message."""


@dataclass
class Episode:
    """Prompt, then replies (mask 1) and observations (mask 0) as one sequence of tokens.

    `response_ids`, `mask`, `log_probs` and `token_rewards` have one entry per token after the
    prompt.
    """

    item: PlayedItem
    group: int
    seat: str = ""
    """Seat that was played, where the policy plays several: rewards are compared within a seat."""
    prompt_ids: list[int] = field(default_factory=list)
    history: list[Message] = field(default_factory=list)
    """Messages of the conversation so far; replies only have positions, since their tokens are
    kept."""
    tags: frozenset[str] = frozenset()
    """Special tokens that the environment parses."""
    tools: list[dict[str, object]] = field(default_factory=list)
    """Functions that the chat template shows in the prompt."""
    stop: StopStrings | None = None
    """Strings that end a reply: the recipe's and the environment's."""
    media: PromptMedia | None = None
    """Media of the prompt besides text; siblings share them."""
    env: BaseTextEnv | None = None
    """Set when the environment was created; None again when it is done."""
    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    token_rewards: list[float] = field(default_factory=list)
    """Reward of each turn, at the last token of its reply."""
    supports: list[Support] = field(default_factory=list)
    """Tokens that could be drawn, in the order of `response_ids`."""
    routings: list[np.ndarray] = field(default_factory=list)
    """Experts of the tokens of prompt and replies, turn by turn, if they were recorded."""
    versions: list[int] = field(default_factory=list)
    """Number of the weights that drew each token of `response_ids`, those of its reply for an
    observation; empty where no weights are renewed meanwhile."""
    last_reply_tokens: int = 0
    """Length of the last reply in tokens."""
    replies: list[str] = field(default_factory=list)
    """The model's own words, turn by turn."""
    turns: list[Said] = field(default_factory=list)
    """Messages after the prompt."""
    started: float = field(default_factory=time.perf_counter)
    done: bool = False
    given_up: bool = False
    """True if enough other groups had ended before it (`rollout.extra_prompts`)."""
    begun: Begun | None = None
    """First reply that an earlier rollout left unfinished, or this one; None once it was heard."""
    is_awaited: bool = False
    """True if it is played to its end, however many other groups have ended."""
    stop_reason: StopReason = StopReason.EOS
    error: str | None = None
    """Reason why an environment call failed."""
    failed_call: EnvCall | None = None
    """Kind of the call that failed."""
    timed_out: bool = False
    """True if the call failed by its timeout."""
    env_seconds: float = 0.0
    metadata: dict[str, object] = field(default_factory=dict)
    """Metadata of the last turn."""
    answer: str | None = None
    """Text that scorers read, if it is not the tokens after the prompt."""
    env_metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the environment."""

    @property
    def has_verdict(self) -> bool:
        """True if the reward counts: a failure to close comes after the reward."""
        return self.failed_call in (None, EnvCall.CLOSE)

    @property
    def env_read(self) -> str:
        """Metadata that the environment gave with the last turn, as JSON of limited length."""
        text = json.dumps(self.metadata, ensure_ascii=False, default=str) if self.metadata else ""
        if len(text) <= LONGEST_READ:
            return text
        return f"{text[:LONGEST_READ]}..."

    @property
    def reward(self) -> float:
        """Sum of all turns' rewards."""
        return sum(self.token_rewards)

    @property
    def routing(self) -> np.ndarray | None:
        """Experts of the row's tokens, as in the column `ROUTING`."""
        return np.concatenate(self.routings) if self.routings else None

    @property
    def num_turns(self) -> int:
        """Number of replies."""
        return len(self.replies)

    @property
    def context(self) -> list[int]:
        """All tokens so far."""
        return self.prompt_ids + self.response_ids

    def add_reply(self, reply: Reply, text: str) -> None:
        """Append a reply as the next turn."""
        self._add(reply.token_ids, reply.log_probs, 1)
        self.supports.append(reply.support or Support.whole(len(reply.token_ids)))
        if reply.routing is not None:
            # Earlier replies were drawn with the experts of their own turns.
            self.routings.append(reply.routing[sum(map(len, self.routings)) :])
        self.versions += reply.versions
        self.replies.append(text)
        self._say("assistant", text, len(reply.token_ids), 0.0)
        self.last_reply_tokens = len(reply.token_ids)
        self.stop_reason = reply.stop_reason

    def add_reward(self, reward: float) -> None:
        """Add the reward of the turn that just ended."""
        self.token_rewards[-1] += reward
        self.turns[-1]["reward"] = (self.turns[-1]["reward"] or 0.0) + reward

    def add_observation(self, token_ids: list[int], messages: Sequence[Message]) -> None:
        """Append an observation of the environment, as tokens and as the messages that they
        hold."""
        self._add(token_ids, [0.0] * len(token_ids), 0)
        self.supports.append(Support.whole(len(token_ids)))
        self.versions += self.versions[-1:] * len(token_ids)
        for number, one in enumerate(messages):
            self._say(str(one["role"]), one["content"], 0 if number else len(token_ids), None)

    def fail(self, call: EnvCall, error: str, *, timed_out: bool = False) -> None:
        """Record a failure of the environment; only the first is kept."""
        if self.failed_call is None:
            self.error, self.failed_call, self.timed_out = error, call, timed_out
        if not self.has_verdict:
            self.done, self.stop_reason = True, StopReason.FAILED

    def _say(self, role: str, content: object, num_tokens: int, reward: float | None) -> None:
        seconds = time.perf_counter() - self.started
        said: Said = {
            "role": role,
            "content": content,
            "num_tokens": num_tokens,
            "reward": reward,
            "seconds": seconds,
        }
        self.turns.append(said)

    def _add(self, token_ids: list[int], log_probs: list[float], mask: int) -> None:
        self.response_ids += token_ids
        self.log_probs += log_probs
        self.mask += [mask] * len(token_ids)
        self.token_rewards += [0.0] * len(token_ids)
