"""Rows of agents, played: each episode in a process of its own, which asks the policy through an
endpoint of this machine; requests of all episodes are decoded together."""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from rl_core.data.prepare.items import PlayedItem
from rl_core.envs.agent import AgentSettings
from rl_core.envs.calls.forms import form_of
from rl_core.envs.seats import POLICY
from rl_core.errors import DataError, ModelError, WorkerDied
from rl_core.models.checks.row_length import LongestRow
from rl_core.models.decoding.continuous.arrivals import Answers, Arrival
from rl_core.models.decoding.request import Reply, Request, Sampling, StopReason
from rl_core.models.decoding.stop_strings import StopStrings
from rl_core.rollout.agents.desk import ROLLOUT_ENDED, Hall, Play, Waiting
from rl_core.rollout.agents.endpoint import EpisodeEndpoint, EpisodeEngine
from rl_core.rollout.agents.given_row import given_row
from rl_core.rollout.agents.opponents import Opponent
from rl_core.rollout.agents.processes import Ended
from rl_core.rollout.agents.seated import SeatedEndpoint, ends_of_seats
from rl_core.rollout.agents.stage import AgentStage
from rl_core.rollout.agents.turns import TurnLog
from rl_core.rollout.episodes.env_calls import EnvCall
from rl_core.rollout.episodes.episode import Episode
from rl_core.serving.served_model import KnownModel
from schemas.sections.rollout import EpisodeConfig

Asking: TypeAlias = tuple[Waiting, Request]
Generate = Callable[[list[Request]], list[Reply]]
SEEDS = 2**62


@dataclass(frozen=True)
class Limits:
    """Limits of a rollout."""

    max_context_length: int
    max_batch_size: int
    episodes: EpisodeConfig
    sampling: Sampling
    """Sampling of the policy, and of frozen models that play a seat."""
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
    answers: Answers | None = None,
    one_row: bool = False,
) -> list[Episode]:
    """Play rows of agents `group_size` times; an episode gives a row, or several if it was split.

    Args: items: rows with their numbers, which become their episodes' `group`. generate: called in
    this thread with at most `max_batch_size` requests. answers: answers each request as it comes,
    in the place of `generate`. one_row: keep only the last row of each
    episode, as evaluations count replies; seats are those of evaluations. Raises: EnvError when an
    agent cannot be imported; ModelError when a seat's model cannot be loaded.
    """
    if not items:
        return []
    return _Rollout(items, group_size, stage, generate, limits, seed, answers, one_row).played()


class _Rollout:
    def __init__(
        self,
        items: list[tuple[int, PlayedItem]],
        group_size: int,
        stage: AgentStage,
        generate: Generate,
        limits: Limits,
        seed: int,
        answers: Answers | None,
        one_row: bool,
    ) -> None:
        self.one_row = one_row
        self.stage, self.generate, self.answers, self.limits = stage, generate, answers, limits
        self.configs = {item["env_class"]: stage.config(item["env_class"]) for _, item in items}
        self.seats = {
            name: config.seated(evaluation=one_row) for name, config in self.configs.items()
        }
        self.players: dict[tuple[str, str], Opponent] = {}
        for name, seats in self.seats.items():
            for seat, who in seats.items():
                if who != POLICY:
                    self.players[name, seat] = stage.opponent(who)
        changed = threading.Condition(threading.RLock())
        played = [(group, item) for group, item in items for _ in range(group_size)]
        self.plays = [
            Play(
                number,
                item,
                group,
                self._logs(item["env_class"]),
                self.configs[item["env_class"]].timeout_s,
                changed,
                seed=_hashed(seed, number),
            )
            for number, (group, item) in enumerate(played)
        ]
        patience_s = limits.episodes.patience_s if answers is None else 0.0
        self.hall = Hall(self.plays, changed, patience_s)
        self.held: dict[Waiting, None] = {}
        """Requests that were taken from the hall and are not answered."""
        self.key_of: dict[Play, str] = {}
        self.number_of: dict[Play, int] = {}
        self.closed: set[Play] = set()
        self.given: tuple[PlayedItem, dict[str, object]] | None = None
        """The row that was given last: siblings start one after the other."""

    def _logs(self, name: str) -> dict[str, TurnLog]:
        logs: dict[str, TurnLog] = {}
        for seat in self.seats[name] or ("",):
            logs[seat] = TurnLog(self._model(name, seat).chat, seat)
        return logs

    def _model(self, name: str, seat: str) -> KnownModel:
        player = self.players.get((name, seat))
        return self.stage.model if player is None else player.model

    def played(self) -> list[Episode]:
        """Play everything. Returns: rows in the order of the episodes."""
        try:
            if self.answers is None:
                self._play_together()
            else:
                self._play_one_by_one(self.answers)
        finally:
            for one in self.held:
                one.stream.fail(ROLLOUT_ENDED)
            for play in self.plays:
                play.seal()
                self._close(play)
        first = -1 if self.one_row else 0
        return [row for play in self.plays for row in self._rows(play)[first:]]

    def _play_together(self) -> None:
        """Decode the requests of all episodes at once, and answer them when all have ended."""
        while held := self.hall.next_requests(self.limits.max_batch_size, self._turn_over):
            own = self._answer_for_others(held)
            requests = [request for _, request in own]
            if own:
                self._deliver(own, self.generate(requests))

    def _play_one_by_one(self, answers: Answers) -> None:
        """Decode each request as it comes, and answer it as it ends."""
        asked: dict[Arrival, Waiting] = {}
        while True:
            room = self.limits.max_batch_size - answers.num_running
            if answers.num_running:
                held = self.hall.waiting_now(room, self._turn_over)
            elif not (held := self.hall.next_requests(room, self._turn_over)):
                return
            came = dict[Arrival, Waiting]()
            for one, request in self._answer_for_others(held):
                came[Arrival(request, one.is_wanted)] = one
            answers.put(list(came))
            asked |= came
            for arrival, reply in answers.step():
                self._deliver([(asked.pop(arrival), arrival.request)], [reply])

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
        seats = {seat: self._endpoint(play, name, seat) for seat in play.logs}
        self.stage.keys[key] = seats[""] if "" in seats else SeatedEndpoint.of(seats)
        self.key_of[play] = key
        self.number_of[play] = next(self.stage.numbers)
        play.start()
        try:
            order = {"row": self._row(play), "url": self.stage.url(), "key": key, "seed": play.seed}
            self.stage.processes(name).start(self.number_of[play], order, play.end)
        except (DataError, ModelError, WorkerDied) as error:
            play.end(Ended(error=str(error)))

    def _row(self, play: Play) -> dict[str, object]:
        """Return an episode's row as its agent is given it. Raises: DataError when a picture cannot
        be shown, ModelError when the policy sees none."""
        if self.given is None or self.given[0] is not play.item:
            extras, chat = play.item["env_extras"], self.stage.model.chat
            if extras.get("images") and chat.why_no_pictures:
                raise ModelError(chat.why_no_images)
            self.given = play.item, given_row(play.item["prompt"], extras)
        return self.given[1]

    def _endpoint(self, play: Play, name: str, seat: str) -> EpisodeEndpoint:
        known, log = self._model(name, seat), play.logs[seat]
        longest, most = known.longest, self.limits.max_context_length
        if (name, seat) not in self.players:
            longest = LongestRow(most, f"has {most} positions (rollout.max_context_length)")
        model = KnownModel(known.chat, longest, known.num_words)
        form = form_of(str(getattr(known.tokenizer, "chat_template", "") or ""))
        engine, tell = EpisodeEngine(log, play), partial(self.stage.tell, name)
        return EpisodeEndpoint(engine, model, seat or "policy", form, 1, 0, log, tell)

    def _close(self, play: Play) -> None:
        """Take an episode's key and process away."""
        if play.started_at is None or play in self.closed:
            return
        self.closed.add(play)
        self.stage.keys.pop(self.key_of[play], None)
        self.stage.end(play.item["env_class"], self.number_of[play])

    def _answer_for_others(self, held: list[Waiting]) -> list[Asking]:
        """Answer the requests of seats that the policy does not play. Returns: the policy's."""
        self.held |= dict.fromkeys(held)
        of_player: dict[Opponent | None, list[Asking]] = {None: []}
        for one in held:
            player = self.players.get((one.play.item["env_class"], one.turn.seat))
            of_player.setdefault(player, []).append((one, self._request(one)))
        for player, some in of_player.items():
            if player is not None:
                waiting, requests = zip(*some, strict=True)
                self._deliver(some, player.answer(waiting, requests, self.limits.sampling))
        return of_player[None]

    def _deliver(self, asked: list[Asking], replies: Sequence[Reply | str]) -> None:
        for (one, request), reply in zip(asked, replies, strict=True):
            del self.held[one]
            if isinstance(reply, str):
                # Before the agent hears of it, which may take it for a loss.
                one.play.end(Ended(error=reply))
                one.play.answered(one.turn)
                one.stream.fail(reply)
                continue
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
        seat = one.turn.seat
        earlier = one.play.logs[seat].turns[: one.turn.number]
        asks = prompt, one.turn.pictures
        repeat = sum((turn.prompt, turn.pictures) == asks for turn in earlier)
        named = filter(None, (seat, one.turn.pictures))
        seed = _hashed(one.play.seed, repeat, prompt, *named)
        stop, media = StopStrings.of(strings, tags), one.turn.media
        return Request(prompt, 1, room, media, stop=stop, seed=seed)

    def _rows(self, play: Play) -> list[Episode]:
        ended = play.ended or Ended(error="it was never played")
        name = play.item["env_class"]
        seats = self.seats[name]
        trained = [seat for seat, who in seats.items() if who == POLICY] or [""]
        of_seat = {seat: self._seat_rows(play, seat) for seat in trained}
        error = ended.error
        if error is None and not any(turn.delivered for turn in play.turns):
            error = "the agent returned without a reply of the model"
        ends = ends_of_seats(ended, seats, trained) if error is None else error
        if isinstance(ends, str):
            error = ends
        else:
            for seat, end in ends.items():
                error = error or _rewarded(of_seat[seat], end, self.configs[name], play.logs[seat])
        rows = [row for some in of_seat.values() for row in some]
        if not self.one_row and any(row.replies for row in rows):
            # A seat without a move has nothing to learn from; an evaluation counts its result.
            rows = [row for row in rows if row.replies]
        if len(trained) == 1:
            for row in rows:
                row.seat = ""
        for row in rows:
            row.env_seconds = play.agent_s / len(rows)
            if error is not None:
                row.fail(EnvCall.STEP, error, timed_out=ended.timed_out)
        if error is not None:
            self.stage.tell(name, error)
            # One row without a verdict says all about an episode that failed.
            return rows[-1:]
        rows[0].env_metrics = {
            **ended.metrics,
            **_metrics(play, rows, trained, ended.seats or {}),
        }
        return rows

    def _seat_rows(self, play: Play, seat: str) -> list[Episode]:
        """Return the rows of a seat; one without a reply if it was never asked."""
        rows = play.logs[seat].episodes(play.item, play.group)
        if not rows:
            eos = self.stage.model.tokenizer.eos_token_id
            rows = [Episode(play.item, play.group, prompt_ids=[eos], done=True)]
        for row in rows:
            row.seat = seat
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
            if not row.replies:
                row.add_observation(row.prompt_ids[:1], [])
                row.token_rewards[-1] = numbers[0]
                continue
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


def _metrics(
    play: Play, rows: list[Episode], trained: list[str], rewards: Mapping[str, float]
) -> dict[str, float]:
    """Return counts of the requests of trained seats, and the reward of each seat."""
    asked = []
    for seat in trained:
        asked.append([turn for turn in play.logs[seat].turns if turn.delivered])
    delivered = sum(map(len, asked))
    return {
        "requests": float(delivered),
        "withdrawn_requests": float(play.num_withdrawn),
        "rows": float(len(rows)),
        "later_requests": float(delivered - sum(map(bool, asked))),
        "stitched_requests": float(delivered - sum(bool(row.replies) for row in rows)),
        **{f"reward_{seat}": reward for seat, reward in rewards.items()},
    }


def _hashed(*parts: object) -> int:
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") % SEEDS
