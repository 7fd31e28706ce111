"""The multi-turn loop: policy replies, environments answer, until every episode is done.

A failing environment fails its own row, with its reason, never the batch.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from rl_core.envs import make
from rl_core.rollout.chat import ChatFormat
from rl_core.rollout.decode import Reply, StopReason

Generate = Callable[[list[list[int]], int], list[Reply]]


@dataclass
class Episode:
    """One conversation: prompt, then replies (mask 1) and observations (mask 0) as one run of tokens."""

    item: dict[str, Any]
    group: int
    prompt_ids: list[int]
    env: Any = None
    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    reward: float = 0.0
    num_turns: int = 0
    done: bool = False
    stop_reason: StopReason = StopReason.EOS
    error: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def add_reply(self, reply: Reply) -> None:
        self.response_ids += reply.token_ids
        self.log_probs += reply.log_probs
        self.mask += [1] * len(reply.token_ids)
        self.stop_reason = reply.stop_reason
        self.num_turns += 1

    def add_observation(self, token_ids: list[int]) -> None:
        self.response_ids += token_ids
        self.log_probs += [0.0] * len(token_ids)
        self.mask += [0] * len(token_ids)


def run_episodes(
    items: list[dict[str, Any]],
    num_siblings: int,
    chat: ChatFormat,
    generate: Generate,
    env_options: dict[str, dict[str, Any]],
    max_context_length: int,
) -> list[Episode]:
    """Play every item `num_siblings` times, siblings adjacent.

    The first turn shares one prefill per item; later turns prefill each episode's own context.
    """
    episodes: list[Episode] = []
    first_prompts: list[list[int]] = []
    for group, item in enumerate(items):
        siblings = [_start(item, group, chat, env_options) for _ in range(num_siblings)]
        first_prompts.append(siblings[0].prompt_ids)
        episodes += siblings
    for episode, reply in zip(episodes, generate(first_prompts, num_siblings), strict=True):
        _take_turn(episode, reply, chat, max_context_length)
    while active := [episode for episode in episodes if not episode.done]:
        contexts = [episode.prompt_ids + episode.response_ids for episode in active]
        for episode, reply in zip(active, generate(contexts, 1), strict=True):
            _take_turn(episode, reply, chat, max_context_length)
    for episode in episodes:
        if episode.env is not None:
            episode.env.close()
    return episodes


def _start(item: dict[str, Any], group: int, chat: ChatFormat, env_options: dict[str, dict[str, Any]]) -> Episode:
    env_id = item["env_class"]
    env = None
    try:
        env = make(env_id, env_config=env_options.get(env_id), extras=item["env_extras"])
        prompt, _ = env.init(item["prompt"])
    except Exception as error:  # the row takes its first reply, so that shapes hold, and is reported as failed
        prompt_ids = chat.encode(item["prompt"])
        return Episode(item=item, group=group, prompt_ids=prompt_ids, env=env, error=_described(error))
    return Episode(item=item, group=group, prompt_ids=chat.encode(prompt), env=env)


def _take_turn(episode: Episode, reply: Reply, chat: ChatFormat, max_context_length: int) -> None:
    episode.add_reply(reply)
    if episode.error is not None:
        episode.done = True
        return
    try:
        outcome = episode.env.step(chat.decode(reply.token_ids))
        if inspect.isawaitable(outcome):
            outcome = asyncio.run(_await(outcome))
    except Exception as error:  # the row is reported as failed; its siblings go on
        episode.error = _described(error)
        episode.done = True
        return
    episode.reward += float(outcome["reward"])
    episode.metadata = dict(outcome["metadata"])
    episode.done = bool(outcome["done"])
    if not episode.done:
        observation = chat.observation(outcome["observations"], after=reply.token_ids)
        used = len(episode.prompt_ids) + len(episode.response_ids) + len(observation)
        if used >= max_context_length:
            episode.done, episode.stop_reason = True, StopReason.CONTEXT
        else:
            episode.add_observation(observation)


async def _await(outcome: Awaitable[Any]) -> Any:
    return await outcome


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
