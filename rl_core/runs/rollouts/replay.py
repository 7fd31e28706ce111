"""Environments asked again about stored replies: nothing is sampled, every reply is played as it
was."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from rl_core.data.prepare.items import PlayedItem
from rl_core.envs import make
from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.rollout.episodes.env_calls import EnvCall, EnvCalls, Outcome
from rl_core.runs.rollouts.reading import Row
from schemas.sections.rollout import EpisodeConfig


@dataclass
class Replayed:
    """Reward of a stored conversation, as its environment gives it now."""

    reward: float = 0.0
    """Sum of its turns' rewards; NaN if it failed."""
    error: str | None = None


def replay(
    rows: Sequence[Row],
    items: Mapping[str, PlayedItem],
    options: Mapping[str, Mapping[str, object]],
    config: EpisodeConfig,
) -> list[Replayed]:
    """Play the replies of each row against a new environment.

    Args: items: prepared prompts by uid. options: a recipe's `environments`. A conversation ends
    when the environment says so, or with the last stored reply.
    """
    with EnvCalls(config.at_once) as calls:
        play = _Replay(rows, items, options, config, calls)
        while calls.pending():
            for outcome in calls.collect(None):
                play.take(outcome)
    return play.found


class _Replay:
    def __init__(
        self,
        rows: Sequence[Row],
        items: Mapping[str, PlayedItem],
        options: Mapping[str, Mapping[str, object]],
        config: EpisodeConfig,
        calls: EnvCalls,
    ) -> None:
        self.calls, self.timeout_s = calls, config.step_timeout_s
        self.found = [Replayed() for _ in rows]
        self.envs: dict[int, BaseTextEnv] = {}
        self.left = [replies_of(row) for row in rows]
        for number, row in enumerate(rows):
            item = items.get(row["uid"])
            if item is None:
                self._fail(number, f"no prepared row {row['uid']}")
                continue
            named = options.get(row["env_class"])
            self._submit(number, EnvCall.INIT, _start, self.envs, number, item, named)

    def take(self, outcome: Outcome) -> None:
        """Go on with a row after one of its calls."""
        number = outcome.row
        if outcome.kind is EnvCall.CLOSE:
            return
        done = outcome.error is not None
        if outcome.error is not None:
            self._fail(number, outcome.error)
        elif outcome.kind is EnvCall.STEP:
            turn = cast(BaseTextEnvStepOutput, outcome.value)
            self.found[number].reward += float(turn["reward"])
            done = bool(turn["done"])
        env = self.envs.get(number)
        if env is None:
            return
        if done or not self.left[number]:
            self._submit(number, EnvCall.CLOSE, env.close)
        else:
            self._submit(number, EnvCall.STEP, env.step, self.left[number].pop(0))

    def _fail(self, number: int, reason: str) -> None:
        self.found[number] = Replayed(math.nan, reason)

    def _submit(
        self, number: int, kind: EnvCall, work: Callable[..., object], *args: object
    ) -> None:
        owner = type(self.envs[number]) if number in self.envs else None
        self.calls.submit(number, kind, work, *args, timeout_s=self.timeout_s, owner=owner)


def replies_of(row: Row) -> list[str]:
    """Return the model's own words, turn by turn."""
    return [one["content"] for one in row["turns"] or [] if one["role"] == "assistant"]


def _start(
    envs: dict[int, BaseTextEnv],
    number: int,
    item: PlayedItem,
    options: Mapping[str, object] | None,
) -> object:
    envs[number] = make(item["env_class"], env_config=options, extras=item["env_extras"])
    return envs[number].init(item["prompt"])
