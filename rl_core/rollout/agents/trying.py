"""One row played by whoever speaks: a person, or a model behind OpenAI's API.

An environment is stepped here; an agent, also one of another package, asks an endpoint of this
machine, as it would in a run. Nothing is trained, and nothing is stored.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse

from rl_core.envs.agent import AgentEnv
from rl_core.envs.registration import make
from rl_core.envs.seats import POLICY
from rl_core.envs.tool_env.served_reply import ServedReply, offered, step_of
from rl_core.errors import EnvError
from rl_core.rollout.agents.endpoint import listening
from rl_core.rollout.agents.given_row import given_row, with_parts
from rl_core.rollout.agents.processes import AgentProcesses, Ended
from rl_core.rollout.agents.seated import ends_of_seats
from rl_core.rollout.chat.observed import part_of

Messages = list[dict[str, Any]]
Speak = Callable[[Messages, list[dict[str, Any]]], dict[str, Any]]
"""Returns the assistant's message that answers a conversation, given the tools on offer."""
Show = Callable[[dict[str, Any]], None]
"""Shows a message of the conversation, each once."""
MAX_TURNS = 64
"""Turns after which a conversation that does not end is left."""


@dataclass(frozen=True)
class Tried:
    """Result of a row that was played."""

    reward: float | None
    """Sum of the rewards; None without a verdict."""
    metrics: Mapping[str, object] = field(default_factory=dict)
    """Numbers that the environment measured, and facts that it read in the last reply."""
    error: str | None = None
    """Reason why there is no verdict."""


def try_row(
    name: str, options: Mapping[str, Any], row: Mapping[str, Any], speak: Speak, show: Show
) -> Tried:
    """Play a row of an environment.

    Args: options: the recipe's, empty for the defaults. row: with its `prompt` and all other
    columns; `images` as `placed_images` returns them. Raises: EnvError when the environment cannot
    be made of them, DataError when a picture cannot be shown.
    """
    extras = {key: value for key, value in row.items() if key != "prompt"}
    env = make(name, options or None, extras)
    prompt = deepcopy(list(row["prompt"]))
    if isinstance(env, AgentEnv):
        return _agent(name, env, given_row(prompt, extras), speak, show)
    try:
        return _stepped(env, prompt, extras.get("images") or (), speak, show)
    except EnvError as error:
        return Tried(None, error=str(error))
    finally:
        env.close()


# Any: an environment of the user's need not derive from BaseTextEnv.
def _stepped(env: Any, prompt: Messages, images: Sequence[str], speak: Speak, show: Show) -> Tried:
    messages, _ = _result(env.init(prompt)) if hasattr(env, "init") else (prompt, {})
    messages = [dict(one) for one in messages]
    if images:
        messages = with_parts(messages, [part_of(image) for image in images])
    for message in messages:
        show(message)
    rewards, read = [], {}
    for _ in range(MAX_TURNS):
        said = speak(messages, offered(env).get("tools", []))
        said = {**said, "content": _to_stop(str(said.get("content") or ""), env)}
        show(said)
        messages.append(said)
        reply = ServedReply(said["content"], 0, False, list(said.get("tool_calls") or ()))
        turn = _result(step_of(env, reply))
        rewards.append(float(turn["reward"]))
        read = dict(turn.get("metadata") or {})
        for message in turn["observations"]:
            show(message)
        messages += [dict(one) for one in turn["observations"]]
        if turn["done"]:
            break
    own = env.get_metrics() if hasattr(env, "get_metrics") else {}
    return Tried(sum(rewards), {**read, **own})


def _to_stop(text: str, env: object) -> str:
    """Return a reply up to the string that ends a turn of this environment; a server says all of
    it."""
    ends = [text.index(stop) + len(stop) for stop in getattr(env, "stop", ()) or () if stop in text]
    return text[: min(ends)] if ends else text


def _result(value: object) -> Any:
    if not inspect.isawaitable(value):
        return value

    async def waited() -> Any:
        return await value

    return asyncio.run(waited())


def _agent(name: str, env: AgentEnv, row: Mapping[str, object], speak: Speak, show: Show) -> Tried:
    seats = env.config.seated(evaluation=True)
    conversation = _Conversation(speak, show, tuple(seats))
    ended: list[Ended] = []
    over = threading.Event()

    def end(how: Ended) -> None:
        ended.append(how)
        over.set()

    processes = AgentProcesses(name, env.config)
    try:
        with listening(_app(conversation)) as url:
            order = {"row": row, "url": url, "key": "tried", "seed": 0}
            processes.start(0, order, end)
            conversation.speak_until(over)
    finally:
        processes.close()
    how = ended[0]
    for message in (how.messages or ())[len(conversation.shown.get("", ())) :]:
        show(dict(message))
    if how.error is not None:
        return Tried(None, how.metrics, how.error)
    if seats:
        ends = ends_of_seats(how, seats, [seat for seat, who in seats.items() if who == POLICY])
        if isinstance(ends, str):
            return Tried(None, how.metrics, ends)
        each = {f"reward_{seat}": reward for seat, reward in (how.seats or {}).items()}
        (of_policy,) = ends.values()
        return Tried(of_policy.reward, {**how.metrics, **each})
    if how.messages is not None:
        return Tried(None, how.metrics, "the agent leaves the reward to the recipe's scorers")
    return Tried(sum(how.rewards) if how.rewards is not None else how.reward, how.metrics)


class _Conversation:
    """Requests of the agent, answered in the caller's own thread, since a person types there."""

    def __init__(self, speak: Speak, show: Show, seats: tuple[str, ...] = ()) -> None:
        self.speak, self.show, self.seats = speak, show, seats
        self.shown: dict[str, Messages] = {seat: [] for seat in seats or ("",)}
        """Conversation of each seat; one without a name where there are no seats."""
        self._changed = threading.Condition()
        self._asked: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        self._is_over = False

    def answer(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Wait for the answer to a request; None if the episode is over."""
        slot: list[dict[str, Any]] = []
        with self._changed:
            self._asked.append((body, slot))
            self._changed.notify_all()
            self._changed.wait_for(lambda: bool(slot) or self._is_over)
        return slot[0] if slot else None

    def speak_until(self, over: threading.Event) -> None:
        """Answer requests until the episode is over."""
        try:
            while not over.is_set():
                with self._changed:
                    self._changed.wait_for(lambda: bool(self._asked) or over.is_set(), 0.1)
                    asked, self._asked = self._asked, []
                for body, slot in asked:
                    said = self._said(body)
                    with self._changed:
                        slot.append(said)
                        self._changed.notify_all()
        finally:
            # Requests that were taken but not answered, and those that arrive later, end as well:
            # a thread that waits on would keep the server from ending.
            with self._changed:
                self._is_over = True
                self._changed.notify_all()

    def _said(self, body: dict[str, Any]) -> dict[str, Any]:
        messages = [dict(one) for one in body["messages"]]
        seat = str(body.get("model")) if self.seats else ""
        known = 0
        for one, other in zip(messages, self.shown[seat], strict=False):
            if (one["role"], one.get("content")) != (other["role"], other.get("content")):
                break
            known += 1
        for message in messages[known:]:
            self.show(message)
        said = self.speak(messages, list(body.get("tools") or ()))
        self.show({**said, "role": f"assistant as {seat}"} if seat else said)
        self.shown[seat] = [*messages, said]
        return said


def _app(conversation: _Conversation) -> FastAPI:
    """Return the application that an agent's client asks."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Any:
        body = await request.json()
        if conversation.seats and body.get("model") not in conversation.seats:
            raise HTTPException(404, f"there is no seat {body.get('model')!r:.200}")
        said = await asyncio.to_thread(conversation.answer, body)
        if said is None:
            raise HTTPException(503, "the episode is over")
        reason = "tool_calls" if said.get("tool_calls") else "stop"
        head = {"id": "tried", "created": 0, "model": str(body.get("model"))}
        choice = {"index": 0, "finish_reason": reason}
        if not body.get("stream"):
            done = choice | {"message": {"role": "assistant", **said}}
            return head | {"object": "chat.completion", "choices": [done]}
        part = head | {
            "object": "chat.completion.chunk",
            "choices": [choice | {"delta": {"role": "assistant", **said}}],
        }
        lines = (f"data: {json.dumps(part)}\n\n", "data: [DONE]\n\n")
        return StreamingResponse(iter(lines), media_type="text/event-stream")

    return app
