"""The oracle check: a row's own answer earns the full reward, an empty and a wrong one do not.

What fails it teaches nothing: a row whose reward nobody can earn, or that everybody earns.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy

from rl_core.envs.base import BaseTextEnv, Message
from rl_core.envs.calls.awaited import result_of
from rl_core.envs.trials.settings import Verdict

EPSILON = 1e-6
MAX_TURNS = 32
"""Turns after which a conversation that does not end is left."""


def play(build: Callable[[], BaseTextEnv], prompt: list[Message]) -> list[tuple[Verdict, str]]:
    """Return what is wrong with a row's rewards.

    Args: build: creates the row's environment, anew for each conversation.
    """
    env = build()
    full = float(getattr(env, "full_reward", BaseTextEnv.full_reward))
    replies = env.oracle_replies() if hasattr(env, "oracle_replies") else None
    _close(env)
    if replies is None:
        why = "it does not say how an answer is written (oracle_replies)"
        return [(Verdict.NOT_PLAYED, why)]
    found = []
    try:
        earned = _reward(build(), prompt, replies.right)
    # As in a rollout: whatever an environment raises is its own row's failure.
    except Exception as error:
        return [(Verdict.UNEARNABLE, f"the right answer {replies.right!r:.100} fails: {error}")]
    if earned < full - EPSILON:
        found.append(
            (
                Verdict.UNEARNABLE,
                f"the right answer {replies.right!r:.100} earns {earned:g}, not {full:g}",
            )
        )
    free: list[str] = []
    for kind, reply in (("an empty answer", ""), ("the wrong answer", replies.wrong)):
        try:
            earned = _reward(build(), prompt, reply)
        # An answer that the environment fails on earns nothing.
        except Exception:
            earned = -math.inf
        if earned >= full - EPSILON:
            shown = f" {reply!r:.100}" if reply else ""
            free.append(f"{kind}{shown} earns {earned:g}")
    return found + ([(Verdict.FREE, " and ".join(free))] if free else [])


# An environment of the user's need not derive from BaseTextEnv, and may lack what it has.
def _reward(env: BaseTextEnv, prompt: list[Message], reply: str) -> float:
    """Return the rewards of a conversation in which the model always says the same."""
    try:
        if hasattr(env, "init"):
            result_of(env.init(deepcopy(prompt)))
        total = 0.0
        for _ in range(MAX_TURNS):
            turn = result_of(env.step(reply))
            total += float(turn["reward"])
            if turn["done"]:
                break
        return total
    finally:
        _close(env)


def _close(env: BaseTextEnv) -> None:
    if hasattr(env, "close"):
        env.close()
