"""Properties of the oracle check."""

from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, make, registered
from rl_core.envs.base import OracleReplies
from rl_core.envs.trials.oracle import play
from rl_core.envs.trials.settings import Verdict

PROMPT = [{"role": "user", "content": "?"}]
PLAYED: dict[str, dict[str, Any]] = {
    "aime": {"reward_spec": {"ground_truth": r"\frac{1}{8}"}},
    "exact_match": {"reward_spec": {"ground_truth": "12 apples"}},
    "geo3k": {"reward_spec": {"ground_truth": ["12", "12.0"]}},
    "gsm8k": {"reward_spec": {"ground_truth": "so 2 * 617 = 1234 #### 1,234.50"}},
    "gsm8k_multi_turn": {"reward_spec": {"ground_truth": -7}},
    "multiple_choice": {"reward_spec": {"ground_truth": "Rome"}, "options": ["Paris", "Rome"]},
    "reasoning_gym": {
        "reward_spec": {"ground_truth": None},
        "extra_info": {"task": "chain_sum", "seed": 1, "index": 0},
    },
    "search": {"reward_spec": {"ground_truth": {"target": ["Paris", "The City"]}}},
    "searchcode": {"reward_spec": {"ground_truth": "0"}},
}
ELSEWHERE = {"text2sql"}
"""Played where there is a database, in its own test."""
SILENT = {"lcb", "rewrite", "open_ended"}
"""A row has no program that passes its tests, or no truth at all."""


def test_every_environment_is_played_or_known_to_be_silent() -> None:
    assert PLAYED.keys() | ELSEWHERE | SILENT <= set(registered())
    builtin = {name for name in registered() if make_class(name).__module__.startswith("rl_core")}
    assert builtin == PLAYED.keys() | ELSEWHERE | SILENT


def make_class(name: str) -> type:
    from rl_core.envs.registration import spec

    return spec(name).load()


@pytest.mark.parametrize("name", PLAYED)
def test_the_own_answer_earns_everything_and_others_do_not(name: str) -> None:
    assert play(lambda: make(name, None, PLAYED[name]), PROMPT) == []


class GenerousEnv(BaseTextEnv):
    """Full reward for anything."""

    def step(self, action: str) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(observations=[], reward=1.0, done=True, metadata={})

    def oracle_replies(self) -> OracleReplies:
        return OracleReplies("right", "wrong")


class StrictEnv(GenerousEnv):
    """Reward for no answer, and none for an empty one, which it cannot read."""

    async def step(self, action: str) -> BaseTextEnvStepOutput:  # type: ignore[override]
        return BaseTextEnvStepOutput(
            observations=[], reward=0.0 * len(action.split()[0]), done=True, metadata={}
        )


def test_what_everybody_earns_is_free() -> None:
    ((verdict, why),) = play(GenerousEnv, PROMPT)
    assert verdict is Verdict.FREE
    assert why == "an empty answer earns 1 and the wrong answer 'wrong' earns 1"


def test_what_nobody_earns_cannot_be_earned() -> None:
    ((verdict, why),) = play(StrictEnv, PROMPT)
    assert (verdict, why) == (
        Verdict.UNEARNABLE,
        "the right answer 'right' earns 0, not 1",
    )


def test_an_answer_beyond_the_tail_that_is_read_cannot_be_earned() -> None:
    long = {"reward_spec": {"ground_truth": "x" * 400}}
    ((verdict, _),) = play(lambda: make("aime", None, long), PROMPT)
    assert verdict is Verdict.UNEARNABLE


def test_an_environment_of_another_make_is_not_played() -> None:
    class Bare:
        def step(self, action: str) -> dict[str, Any]:
            return {"observations": [], "reward": 1.0, "done": True, "metadata": {}}

    ((verdict, _),) = play(Bare, PROMPT)
    assert verdict is Verdict.NOT_PLAYED
