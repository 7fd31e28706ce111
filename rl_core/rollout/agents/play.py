"""Rows of agents, played: each episode in a process of its own, which asks the policy through an
endpoint of this machine; requests of all episodes are decoded together."""

from __future__ import annotations

import atexit
import hashlib
import logging
import math
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from rl_core.data.prepare.items import PlayedItem
from rl_core.envs.agent import AgentEnv, AgentSettings, is_agent
from rl_core.envs.calls.forms import form_of
from rl_core.envs.registration import make
from rl_core.errors import WorkerDied
from rl_core.models.checks.row_length import LongestRow
from rl_core.models.decoding.decode import Reply, Request, StopReason
from rl_core.models.decoding.stop_strings import StopStrings
from rl_core.rollout.agents.desk import Hall, Play, Waiting
from rl_core.rollout.agents.endpoint import EpisodeEndpoint, EpisodeEngine, listening
from rl_core.rollout.agents.processes import AgentProcesses, Ended
from rl_core.rollout.agents.turns import TurnLog
from rl_core.rollout.episodes.env_calls import EnvCall
from rl_core.rollout.episodes.episode import Episode
from rl_core.serving.app import build_app_by_key
from rl_core.serving.served_model import KnownModel
from schemas.sections.rollout import EpisodeConfig

Generate = Callable[[list[Request]], list[Reply]]
SEEDS = 2**62


class AgentStage:
    """Processes of a recipe's agents, which are kept between rollouts, since imports take
    seconds.

    Args: options: a recipe's `environments`. model: as requests know it.
    """

    def __init__(self, options: Mapping[str, Mapping[str, object]], model: KnownModel) -> None:
        self.options, self.model = options, model
        self._processes: dict[str, AgentProcesses] = {}
        self._told: set[str] = set()
        self.numbers = count()
        """Numbers of episodes, none twice: an end may be told after the next rollout began."""

    def plays(self, item: PlayedItem) -> bool:
        """Return True if an agent plays this row."""
        name = item["env_class"]
        return is_agent(name, self.options.get(name))

    def config(self, name: str) -> AgentSettings:
        """Return the settings of an agent. Raises: EnvError on a wrong one."""
        env = make(name, self.options[name], {})
        assert isinstance(env, AgentEnv)
        return env.config

    def processes(self, name: str) -> AgentProcesses:
        """Return the processes of an agent. Raises: EnvError when it cannot be imported."""
        found = self._processes.get(name)
        if found is None or not found.alive:
            if found is not None:
                found.close()
            found = self._processes[name] = AgentProcesses(name, self.config(name))
            atexit.register(found.close)
        return found

    def end(self, name: str, number: int) -> None:
        """End an episode's process if it still runs."""
        if name in self._processes:
            self._processes[name].end(number)

    def tell(self, name: str, error: str) -> None:
        """Log a failure of an agent, each once."""
        if (what := f"environments.{name}: {error}") not in self._told:
            self._told.add(what)
            logging.getLogger(__name__).warning(what)

    def close(self) -> None:
        """End all processes."""
        for one in self._processes.values():
            atexit.unregister(one.close)
            one.close()
        self._processes = {}


@dataclass(frozen=True)
class Limits:
    """Limits of a rollout."""

    max_context_length: int
    max_batch_size: int
    episodes: EpisodeConfig
    stop: tuple[str, ...] = ()
    """Strings that end a reply, besides those of a request."""


def play_agents(
    items: list[tuple[int, PlayedItem]],
    group_size: int,
    stage: AgentStage,
    generate: Generate,
    limits: Limits,
    seed: int,
    *,
    one_row: bool = False,
) -> list[Episode]:
    """Play rows of agents `group_size` times; an episode gives a row, or several if it was split.

    Args: items: rows with their numbers, which become their episodes' `group`. generate: called in
    this thread with at most `max_batch_size` requests. one_row: keep only the last row of each
    episode, as evaluations count replies. Raises: EnvError when an agent cannot be imported.
    """
    if not items:
        return []
    return _Rollout(items, group_size, stage, generate, limits, seed).played(one_row)


class _Rollout:
    def __init__(
        self,
        items: list[tuple[int, PlayedItem]],
        group_size: int,
        stage: AgentStage,
        generate: Generate,
        limits: Limits,
        seed: int,
    ) -> None:
        self.stage, self.generate, self.limits = stage, generate, limits
        self.configs = {item["env_class"]: stage.config(item["env_class"]) for _, item in items}
        changed = threading.Condition(threading.RLock())
        chat = stage.model.chat
        played = [(group, item) for group, item in items for _ in range(group_size)]
        self.plays = [
            Play(
                number,
                item,
                group,
                TurnLog(chat),
                self.configs[item["env_class"]].timeout_s,
                changed,
                seed=_hashed(seed, number),
            )
            for number, (group, item) in enumerate(played)
        ]
        self.hall = Hall(self.plays, changed, limits.episodes.patience_s)
        self.form = form_of(str(getattr(chat.tokenizer, "chat_template", "") or ""))
        self.keys: dict[str, EpisodeEndpoint] = {}
        self.key_of: dict[Play, str] = {}
        self.number_of: dict[Play, int] = {}
        self.closed: set[Play] = set()

    def played(self, one_row: bool) -> list[Episode]:
        """Play everything. Returns: rows in the order of the episodes."""
        with listening(build_app_by_key(self.keys.get)) as url:
            self.url = url
            held: list[Waiting] = []
            try:
                while held := self.hall.next_requests(self.limits.max_batch_size, self._turn_over):
                    self._answer(held)
            finally:
                for play in self.plays:
                    for one in [*held, *play.waiting.values()]:
                        one.stream.fail("the rollout ended")
                    self._close(play)
        return [row for play in self.plays for row in self._rows(play)[-1 if one_row else 0 :]]

    def _turn_over(self) -> None:
        """End episodes that are over or late, and start others in their places."""
        for play in self.plays:
            if play.running and not play.asking and play.agent_s > play.timeout_s:
                why = f"the agent took longer than {play.timeout_s:g} s (timeout_s)"
                play.end(Ended(error=why, timed_out=True))
            if play.ended is not None:
                self._close(play)
        busy = dict.fromkeys(self.configs, 0)
        for play in self.plays:
            busy[play.item["env_class"]] += play.running
        for play in self.plays:
            name = play.item["env_class"]
            if play.started_at is None and busy[name] < self.configs[name].concurrency:
                busy[name] += 1
                self._start(play, name)

    def _start(self, play: Play, name: str) -> None:
        key = f"episode-{secrets.token_hex(16)}"
        most = self.limits.max_context_length
        longest = LongestRow(most, f"has {most} positions (rollout.max_context_length)")
        model = KnownModel(self.stage.model.chat, longest, self.stage.model.num_words)
        engine = EpisodeEngine(play.log, play)
        self.keys[key] = EpisodeEndpoint(
            engine, model, "policy", self.form, 1, 0, play.log, partial(self.stage.tell, name)
        )
        self.key_of[play] = key
        self.number_of[play] = next(self.stage.numbers)
        row = {"prompt": play.item["prompt"], **play.item["env_extras"]}
        order = {"row": _plain(row), "url": self.url, "key": key, "seed": play.seed}
        play.start()
        if play.item["env_extras"].get("images"):
            play.end(Ended(error="the row has images, which agents cannot show the model"))
            return
        try:
            self.stage.processes(name).start(self.number_of[play], order, play.end)
        except WorkerDied as error:
            play.end(Ended(error=str(error)))

    def _close(self, play: Play) -> None:
        """Take an episode's key and process away."""
        if play.started_at is None or play in self.closed:
            return
        self.closed.add(play)
        self.keys.pop(self.key_of[play], None)
        self.stage.end(play.item["env_class"], self.number_of[play])

    def _answer(self, held: list[Waiting]) -> None:
        requests = [self._request(one) for one in held]
        for one, request, reply in zip(held, requests, self.generate(requests), strict=True):
            whole = len(request.token_ids) + len(reply.token_ids)
            is_cut = reply.stop_reason is StopReason.LENGTH
            if is_cut and whole >= self.limits.max_context_length:
                reply = replace(reply, stop_reason=StopReason.CONTEXT)
            one.turn.reply = reply
            one.play.answered(one.turn)
            one.stream.deliver(reply)

    def _request(self, one: Waiting) -> Request:
        prompt = one.turn.prompt
        strings = [*self.limits.stop, *(() if one.asked.stop is None else one.asked.stop.strings)]
        tags = frozenset() if one.asked.stop is None else one.asked.stop.tags
        room = min(one.asked.room, one.asked.sampling.max_new_tokens)
        # Not the order of arrival: requests that an agent sends at once may overtake each other.
        repeat = sum(turn.prompt == prompt for turn in one.play.log.turns[: one.turn.number])
        seed = _hashed(one.play.seed, repeat, prompt)
        return Request(prompt, 1, room, stop=StopStrings.of(strings, tags), seed=seed)

    def _rows(self, play: Play) -> list[Episode]:
        ended = play.ended or Ended(error="it was never played")
        rows = play.log.episodes(play.item, play.group)
        error = ended.error
        if error is None and not rows:
            error = "the agent returned without a reply of the model"
        config = self.configs[play.item["env_class"]]
        if error is None:
            error = _rewarded(rows, ended, config, play.log)
        if not rows:
            eos = self.stage.model.tokenizer.eos_token_id
            rows = [Episode(play.item, play.group, prompt_ids=[eos])]
        for row in rows:
            row.env_seconds = play.agent_s / len(rows)
            if error is not None:
                row.fail(EnvCall.STEP, error, timed_out=ended.timed_out)
        if error is not None:
            self.stage.tell(play.item["env_class"], error)
            # One row without a verdict says all about an episode that failed.
            return rows[-1:]
        rows[0].env_metrics = {**ended.metrics, **_metrics(play, rows)}
        return rows


def _rewarded(rows: list[Episode], ended: Ended, config: AgentSettings, log: TurnLog) -> str | None:
    """Give rows their rewards. Returns: what is wrong with them."""
    numbers = ended.rewards if ended.rewards is not None else (ended.reward or 0.0,)
    if not all(math.isfinite(number) for number in numbers):
        return f"the agent returned the reward {numbers}; it must be a finite number"
    if ended.messages is not None:
        said = []
        for m in ended.messages:
            if m["role"] == "assistant":
                said.append(str(m.get("content") or ""))
        if not said:
            return "the agent returned messages without one of role assistant"
        for row in rows:
            row.answer, row.replies = said[-1], list(said)
        return None
    if ended.rewards is None:
        for row in rows:
            row.add_reward(numbers[0])
        return None
    turns = [turn for row in log.rows() for turn in row]
    if len(numbers) != len(turns):
        return (
            f"the agent returned {len(numbers)} rewards for {len(turns)} requests that were "
            "answered; it must be one for each, or one number for all"
        )
    by_turn = dict(zip(sorted(turns, key=lambda turn: turn.number), numbers, strict=True))
    for row, of_row in zip(rows, log.rows(), strict=True):
        _place_rewards(row, [by_turn[turn] for turn in of_row])
        if config.share_reward:
            row.add_reward(sum(numbers) - row.reward)
    return None


def _place_rewards(row: Episode, rewards: list[float]) -> None:
    """Put the reward of each reply at its last token."""
    edges = zip(row.mask, [*row.mask[1:], 0], strict=True)
    ends = [place for place, (here, after) in enumerate(edges) if here and not after]
    spoken = [turn for turn in row.turns if turn["role"] == "assistant"]
    for place, turn, reward in zip(ends, spoken, rewards, strict=False):
        row.token_rewards[place] += reward
        turn["reward"] = (turn["reward"] or 0.0) + reward
    # Replies without a token between them have one end.
    for turn, reward in zip(spoken[len(ends) :], rewards[len(ends) :], strict=False):
        row.token_rewards[-1] += reward
        turn["reward"] = (turn["reward"] or 0.0) + reward


def _metrics(play: Play, rows: list[Episode]) -> dict[str, float]:
    delivered = sum(turn.delivered for turn in play.log.turns)
    return {
        "requests": float(delivered),
        "withdrawn_requests": float(play.num_withdrawn),
        "rows": float(len(rows)),
        "later_requests": float(delivered - 1),
        "stitched_requests": float(delivered - len(rows)),
    }


def _hashed(*parts: object) -> int:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") % SEEDS


def _plain(value: Any) -> object:
    """Return a row's value as JSON has it."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
