"""The queue of requests: whose time runs, and which requests are decoded together."""

import threading
import time
from typing import Any

from rl_core.rollout.agents.desk import Hall, Play
from rl_core.rollout.agents.turns import Turn

NOTHING: Any = None
"""In place of a log, a request's sampling and its stream, which the queue only passes on."""


def started(*numbers: int) -> list[Play]:
    changed = threading.Condition(threading.RLock())
    plays = [Play(number, {}, 0, NOTHING, 60.0, changed) for number in numbers]
    for play in plays:
        play.start()
    return plays


def test_an_agent_s_time_stands_still_while_a_request_of_it_is_answered():
    (play,) = started(0)
    first, second = Turn(0, [1], None), Turn(1, [1], None)
    for turn in (first, second):
        play.ask(turn, NOTHING, NOTHING)
    spent = play.agent_s
    time.sleep(0.05)
    assert play.agent_s == spent
    play.answered(first)
    time.sleep(0.05)
    assert play.agent_s == spent, "the second one is not answered yet"
    play.answered(second)
    time.sleep(0.05)
    assert play.agent_s > spent


def test_requests_come_in_the_order_of_their_episodes_and_no_more_than_fit():
    plays = started(0, 1)
    for play in reversed(plays):
        for number in (1, 0):
            play.ask(Turn(number, [1], None), NOTHING, NOTHING)
    hall = Hall(plays, plays[0].changed, patience_s=0.0)
    some, rest = (hall.next_requests(3, lambda: None) for _ in range(2))
    assert [(one.play.number, one.turn.number) for one in some] == [(0, 0), (0, 1), (1, 0)]
    assert [(one.play.number, one.turn.number) for one in rest] == [(1, 1)]
