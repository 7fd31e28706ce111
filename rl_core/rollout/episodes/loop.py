"""The multi-turn loop: policy replies, environments answer, until every episode is done.

Environments run in parallel to the decoding. Rows whose environment has answered are decoded
together; after a short wait for slow ones (`patience_s`) the others continue without them. An
environment that fails, or exceeds its deadline, fails its own row, with the reason, never the
batch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, zip_longest
from typing import cast

from rl_core.data.prepare.items import PlayedItem
from rl_core.envs import make
from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, Message
from rl_core.envs.faults import described
from rl_core.errors import DataError, EnvError, ModelError
from rl_core.models.chat.turns import CannotContinue
from rl_core.models.decoding.request import Reply, Request, StopReason
from rl_core.models.decoding.stop_strings import StopStrings
from rl_core.models.media import gone_on
from rl_core.rewards.base import checked_reward
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.env_calls import EnvCall, EnvCalls, Outcome
from rl_core.rollout.episodes.episode import Episode
from rl_core.rollout.episodes.tools import offer_tools
from rl_core.rollout.episodes.unfinished import Begun, Unfinished
from rl_core.rollout.sampler import Generate
from schemas.sections.rollout import EpisodeConfig
from schemas.sections.sampling import checked_stop


def run_episodes(
    items: list[PlayedItem],
    group_size: int,
    chat: ChatFormat,
    generate: Generate,
    env_options: Mapping[str, Mapping[str, object]],
    max_context_length: int,
    max_batch_size: int = 64,
    config: EpisodeConfig | None = None,
    stop: Sequence[str] = (),
    num_kept: int | None = None,
    begun: Sequence[Unfinished | None] = (),
    most_carried: int = 0,
) -> list[Episode]:
    """Play every item `group_size` times, group by group.

    Args: generate: called in this thread with at most `max_batch_size` rows. Siblings with the same
    tokens, as on their first turn, are one request with a shared prefill. stop: strings that end a
    reply, besides those of its environment. num_kept: number of groups to play to the end, those
    whose first replies end before the others'. The rest is given up (`Episode.given_up`), and all
    rows begin in one call of `generate`. begun: what an earlier rollout left of each item, if it
    is given. most_carried: rollouts that may leave a group unfinished; then it is awaited.
    """
    episodes = []
    for group, (item, left) in enumerate(zip_longest(items, begun)):
        for sample in range(group_size):
            one = Episode(item, group)
            if left is not None:
                one.begun, one.is_awaited = left.begun[sample], left.times >= most_carried
            episodes.append(one)
    config = config or EpisodeConfig()
    with EnvCalls(config.at_once) as calls:
        play = _Play(episodes, chat, env_options, max_context_length, config, calls, stop)
        if num_kept is not None:
            play.begin(generate, num_kept)
        while rows := play.next_rows(max_batch_size):
            requests = play.requests(rows)
            for row, reply in zip(rows, generate(requests), strict=True):
                play.hear(row, reply)
    return episodes


class _Play:
    """State of all episodes: rows ready to be decoded, and rows whose environment is busy."""

    def __init__(
        self,
        episodes: list[Episode],
        chat: ChatFormat,
        env_options: Mapping[str, Mapping[str, object]],
        max_context_length: int,
        config: EpisodeConfig,
        calls: EnvCalls,
        stop: Sequence[str],
    ) -> None:
        self.episodes, self.chat, self.env_options = episodes, chat, env_options
        self.max_context_length, self.config, self.calls = max_context_length, config, calls
        self.ready: set[int] = set()
        for row, episode in enumerate(episodes):
            options = env_options.get(episode.item["env_class"])
            calls.submit(
                row,
                EnvCall.INIT,
                _start,
                episode,
                options,
                stop,
                chat,
                timeout_s=self._time_left(episode),
            )

    def begin(self, generate: Generate, num_kept: int) -> None:
        """Sample the first replies of all rows, and give up groups but for `num_kept`."""
        while self.calls.pending(EnvCall.INIT):
            for outcome in self.calls.collect(None):
                self._take(outcome)
        rows = sorted(self.ready)
        self.ready.clear()
        replies = self._first_replies(rows, generate, num_kept)
        ended = dict.fromkeys((self.episodes[row].group for row in rows), True)
        for row, reply in replies.items():
            ended[self.episodes[row].group] &= reply.stop_reason is not StopReason.GIVEN_UP
        # Groups that failed at their start have nothing to sample, and are the last to be kept.
        failed = dict.fromkeys(one.group for one in self.episodes if one.group not in ended)
        awaited = dict.fromkeys(one.group for one in self.episodes if one.is_awaited)
        in_time = [group for group, has_ended in ended.items() if has_ended]
        kept = list(dict.fromkeys([*awaited, *in_time, *failed]))[:num_kept]
        for row, reply in replies.items():
            if self.episodes[row].group in kept:
                self.hear(row, reply)
            else:
                self._give_up(row, reply)
        for episode in self.episodes:
            episode.given_up = episode.group not in kept

    def _first_replies(
        self, rows: list[int], generate: Generate, num_kept: int
    ) -> dict[int, Reply]:
        """Return the first replies of all rows, in order; those that ended in an earlier rollout
        are not sampled again."""
        replies: dict[int, Reply] = {}
        for row in rows:
            begun = self.episodes[row].begun
            if begun is not None and begun.has_ended:
                replies[row] = begun.reply
        asked = [row for row in rows if row not in replies]
        if asked:
            num_asked = len({self.episodes[row].group for row in asked})
            num_whole = len({self.episodes[row].group for row in rows}) - num_asked
            enough = max(1, min(num_kept - num_whole, num_asked))
            replies |= zip(asked, generate(self.requests(asked), enough), strict=True)
        return {row: replies[row] for row in rows}

    def _give_up(self, row: int, reply: Reply) -> None:
        """End an episode of which nobody wants a reward, unless a later rollout goes on with it."""
        episode = self.episodes[row]
        episode.begun = Begun(episode.prompt_ids, reply)
        episode.add_reply(reply, "")
        episode.done = True
        timeout_s = self.config.step_timeout_s
        self.calls.submit(row, EnvCall.CLOSE, _end, episode, timeout_s=timeout_s)

    def next_rows(self, at_most: int) -> list[int]:
        """Return the rows to decode next, in order; empty when all episodes are done and closed."""
        patient_until = time.monotonic() + self.config.patience_s
        while self.calls.pending():
            left_s = patient_until - time.monotonic()
            if self.ready and (left_s <= 0 or not self.calls.pending(EnvCall.INIT, EnvCall.STEP)):
                break
            waited_for_one = not self.ready
            for outcome in self.calls.collect(None if waited_for_one else left_s):
                self._take(outcome)
            if waited_for_one:
                patient_until = time.monotonic() + self.config.patience_s
        rows = sorted(self.ready)[:at_most]
        self.ready.difference_update(rows)
        return rows

    def requests(self, rows: list[int]) -> list[Request]:
        """Return the requests of these rows; siblings with the same tokens are one request."""

        def standing(row: int) -> tuple[int, list[int], str, int]:
            one = self.episodes[row]
            alone = row if one.begun is not None else -1
            # Observations may show pictures of the same number of tokens.
            return one.group, one.context, "" if one.media is None else one.media.key, alone

        together = [list(same) for _, same in groupby(rows, standing)]
        return [self._request(self.episodes[same[0]], len(same)) for same in together]

    def _request(self, episode: Episode, num_replies: int) -> Request:
        context = episode.context
        room = self.max_context_length - len(context)
        return Request(
            context,
            num_replies,
            room,
            episode.media,
            episode.stop,
            group=episode.group,
            begun=None if episode.begun is None else episode.begun.reply,
            is_awaited=episode.is_awaited,
        )

    def hear(self, row: int, reply: Reply) -> None:
        """Append a reply and pass it to the environment."""
        episode = self.episodes[row]
        if len(episode.context) + len(reply.token_ids) >= self.max_context_length:
            reply = _cut_by_context(reply)
        text = self.chat.decode(reply.token_ids, episode.tags)
        episode.begun = None
        episode.add_reply(reply, text)
        env, timeout_s = episode.env, self._time_left(episode)
        assert env is not None  # it was created before its first reply
        owner = type(env)
        self.calls.submit(row, EnvCall.STEP, env.step, text, timeout_s=timeout_s, owner=owner)

    def _take(self, outcome: Outcome) -> None:
        """Process the outcome of a call."""
        episode = self.episodes[outcome.row]
        episode.env_seconds += outcome.elapsed_s
        error = outcome.error
        if error is None:
            try:
                self._digest(episode, outcome)
            except CannotContinue as refusal:
                # A template that cannot carry several turns at all ends the run; a refusal of this
                # row's text only fails the row.
                self.chat.check_several_turns()
                error = described(refusal)
            except (
                Exception
            ) as fault:  # what an environment answered may be anything; the others go on
                error = described(fault)
        if error is not None:
            episode.fail(outcome.kind, error, timed_out=outcome.timed_out)
            # One token, so that the row has its place in the batch.
            episode.prompt_ids = episode.prompt_ids or [self.chat.tokenizer.eos_token_id]
        if outcome.kind is EnvCall.CLOSE:
            return
        if not episode.done:
            self.ready.add(outcome.row)
        elif episode.env is not None:
            timeout_s = self.config.step_timeout_s
            self.calls.submit(outcome.row, EnvCall.CLOSE, _end, episode, timeout_s=timeout_s)

    def _digest(self, episode: Episode, outcome: Outcome) -> None:
        if outcome.kind is EnvCall.INIT:
            messages = _prompt_of(outcome.value)
            prompt = self.chat.encode_prompt(messages, episode.item, episode.tools)
            prompt_ids = prompt.token_ids
            if len(prompt_ids) >= self.max_context_length:
                raise EnvError(
                    f"the prompt has {len(prompt_ids)} tokens and leaves no room for a reply; "
                    f"raise rollout.max_context_length ({self.max_context_length})"
                )
            if episode.begun is not None:
                episode.begun.check_prompt(prompt_ids, episode.item["env_class"])
            episode.prompt_ids, episode.media = prompt_ids, prompt.media
            episode.history = self.chat.history(messages, episode.item)
        elif outcome.kind is EnvCall.STEP:
            # What the environment answered may be anything; what is wrong with it fails its row.
            self._finish_turn(episode, cast(BaseTextEnvStepOutput, outcome.value))

    def _finish_turn(self, episode: Episode, outcome: BaseTextEnvStepOutput) -> None:
        try:
            reward = checked_reward(outcome["reward"])
        except ValueError as error:
            raise EnvError(f"the reward is {error}") from error
        # An observation that cannot be encoded fails the turn before its reward counts.
        observation: list[int] = []
        media = episode.media
        said: list[Message] = []
        if not outcome["done"]:
            said = outcome["observations"]
            try:
                observed = self.chat.observed(
                    said, episode.response_ids, episode.history, episode.tools
                )
                if observed.media is not None:
                    self.chat.check_places(episode.context, episode.media)
                    media = gone_on(episode.media, observed.media)
            except CannotContinue:
                raise
            except (DataError, ModelError) as error:
                row, turn = episode.item["uid"], episode.num_turns
                raise DataError(f"row {row}, observation after turn {turn}: {error}") from error
            observation = observed.token_ids
            episode.history = self.chat.gone_on(episode.history, said)
        episode.add_reward(reward)
        episode.metadata = dict(outcome.get("metadata") or {})
        episode.done = bool(outcome["done"]) or episode.stop_reason is StopReason.CONTEXT
        if episode.done:
            return
        if len(episode.context) + len(observation) >= self.max_context_length:
            episode.done, episode.stop_reason = True, StopReason.CONTEXT
        else:
            episode.add_observation(observation, said)
            episode.media = media

    def _time_left(self, episode: Episode) -> float:
        return max(
            0.001,
            min(self.config.step_timeout_s, self.config.episode_timeout_s - episode.env_seconds),
        )


def _start(
    episode: Episode, options: Mapping[str, object] | None, stop: Sequence[str], chat: ChatFormat
) -> object:
    """Create the environment. Returns: the result of its `init`, which may have to be awaited."""
    env = make(episode.item["env_class"], env_config=options, extras=episode.item["env_extras"])
    if episode.done:  # given up meanwhile
        env.close()
    ends = [*stop, *_own_stop(env, options or {})]
    called = offer_tools(env, episode, chat)
    # A special token that is a stop string stays in the text, as a tag does.
    episode.env, episode.tags = env, frozenset([*getattr(env, "tags", ()), *called, *ends])
    episode.stop = StopStrings.of(ends, episode.tags)
    return env.init(episode.item["prompt"])


def _own_stop(env: BaseTextEnv, options: Mapping[str, object]) -> Sequence[str]:
    """Return the strings that end a turn of an environment: its attribute `stop`, or, for a class
    without one, the recipe's option."""
    own = getattr(env, "stop", None)
    own = options.get("stop") if own is None else own
    if own is None:
        return ()
    if isinstance(own, str) or not isinstance(own, Sequence):
        raise EnvError(
            f"{type(env).__name__}.stop must be a list of the strings that end a turn, got "
            f"{own!r:.80}"
        )
    try:
        return checked_stop([str(one) for one in own])
    except ValueError as error:
        raise EnvError(f"{type(env).__name__}.stop: {error}") from error


def _end(episode: Episode) -> object:
    """Read the environment's metrics and close it, also when the metrics fail."""
    env = episode.env
    assert env is not None
    try:
        if episode.has_verdict:
            measure = getattr(env, "get_metrics", dict)
            episode.env_metrics = {name: float(value) for name, value in measure().items()}
    finally:
        closing = env.close()
    return closing


def _prompt_of(answer: object) -> list[Message]:
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise EnvError(f"init must return (prompt, information), got {answer!r:.200}")
    return answer[0]


def _cut_by_context(reply: Reply) -> Reply:
    """Return the same reply, marked as truncated by the context limit unless the model ended it."""
    reason = StopReason.CONTEXT if reply.stop_reason is StopReason.LENGTH else reply.stop_reason
    return replace(reply, stop_reason=reason)
