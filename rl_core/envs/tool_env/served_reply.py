"""Calls of tools in the answers of a server, which takes them apart by itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_core.envs.base import BaseTextEnvStepOutput
from rl_core.envs.calls.form import Call, Parsed, call_of
from rl_core.envs.tool_env.environment import ToolEnv


@dataclass(frozen=True)
class ServedReply:
    """A reply of a server."""

    text: str
    num_tokens: int
    truncated: bool
    calls: list[dict[str, Any]] = field(default_factory=list)
    """`tool_calls` of the message, as the server wrote them."""

    @property
    def whole(self) -> str:
        """The text with its calls."""
        told = [json.dumps(one.get("function"), ensure_ascii=False) for one in self.calls]
        return "\n".join([*([self.text] if self.text else []), *told])

    @property
    def message(self) -> dict[str, Any]:
        """The reply as a message of the conversation."""
        said = {"role": "assistant", "content": self.text}
        return {**said, "tool_calls": self.calls} if self.calls else said


def offered(env: object) -> dict[str, Any]:
    """Return the part of a request that offers an environment's tools; empty if it has none."""
    tools = env.template_tools if isinstance(env, ToolEnv) else []
    return {"tools": tools} if tools else {}


def step_of(env: Any, reply: ServedReply) -> Any:
    """Play a reply: return the environment's turn, with the ids of the server's calls in its
    answers."""
    if not (isinstance(env, ToolEnv) and reply.calls):
        return env.step(reply.text)
    calls = [_call(one) for one in reply.calls]
    good = [one for one in calls if one is not None]
    turn = env.take(
        Parsed(reply.text, good if len(good) == len(calls) else []),
        is_malformed=len(good) < len(calls),
    )
    return _with_ids(turn, reply.calls)


def _call(one: Mapping[str, object]) -> Call | None:
    return call_of(one.get("function"))


def _with_ids(
    turn: BaseTextEnvStepOutput, calls: Sequence[Mapping[str, object]]
) -> BaseTextEnvStepOutput:
    answers = turn["observations"]
    if turn["done"]:
        return turn
    if len(answers) < len(calls):  # one message says that the calls cannot be read
        answers = [dict(answers[0]) for _ in calls]
    named = [
        {**answer, "tool_call_id": call.get("id")}
        for answer, call in zip(answers, calls, strict=True)
    ]
    return {**turn, "observations": named}
