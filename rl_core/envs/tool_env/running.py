"""The calls of one turn, run at once, each with a deadline."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from rl_core.envs.calls.form import Call
from rl_core.envs.tool_env.result import Content
from rl_core.envs.tool_env.tool import Tool, ToolFault, ToolTimeout
from rl_core.errors import EnvError
from rl_core.runtime.registry import nearest

GRACE_S = 0.5
"""Seconds after a deadline in which a tool that keeps it may still say so."""


@dataclass(frozen=True)
class Answered:
    """Answer to a call, as the model reads it."""

    content: Content
    failed: bool = False
    """True if it is an error."""
    timed_out: bool = False


def run_calls(calls: Sequence[Call], tools: Mapping[str, Tool], timeout_s: float) -> list[Answered]:
    """Return the answers in the order of the calls. A tool that raises or hangs is answered with
    `error: ...`; its thread is left behind, as threads cannot be ended.

    Raises: EnvError of a tool that is broken by itself.
    """
    done: queue.SimpleQueue[tuple[int, Answered | EnvError]] = queue.SimpleQueue()
    for number, call in enumerate(calls):
        threading.Thread(
            target=lambda n=number, c=call: done.put((n, _answer(c, tools, timeout_s))),
            name="tool",
            daemon=True,
        ).start()
    found: dict[int, Answered | EnvError] = {}
    ends = time.monotonic() + timeout_s + GRACE_S
    with suppress(queue.Empty):
        while len(found) < len(calls):
            number, answer = done.get(timeout=max(0.001, ends - time.monotonic()))
            found[number] = answer
    late = Answered(f"error: no answer within {timeout_s:g} s", failed=True, timed_out=True)
    answers = [found.get(number, late) for number in range(len(calls))]
    for answer in answers:
        if isinstance(answer, EnvError):
            raise answer
    return [answer for answer in answers if isinstance(answer, Answered)]


def _answer(call: Call, tools: Mapping[str, Tool], timeout_s: float) -> Answered | EnvError:
    tool = tools.get(call.name)
    if tool is None:
        hint = nearest(call.name, list(tools))
        return Answered(f"error: there is no tool {call.name!r}{hint}", failed=True)
    arguments: dict[str, object] = json.loads(call.arguments)
    try:
        return Answered(tool.call(arguments, timeout_s))
    except ToolTimeout as error:
        return Answered(f"error: {error}", failed=True, timed_out=True)
    except ToolFault as error:
        return Answered(f"error: {error}", failed=True)
    except EnvError as error:
        return error
    # Anything else is a defect of the tool's class, and no word to the model.
    except Exception as error:
        return EnvError(f"tool {call.name}: {type(error).__name__}: {error}")
