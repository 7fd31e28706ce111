"""The policy behind OpenAI's API, for the agents of one rollout: an API key for each episode."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rl_core.data.prepare.chat_template import Message, Tools
from rl_core.errors import WorkerDied
from rl_core.models.decoding.request import Reply
from rl_core.rollout.agents.turns import Conversation, Turn, TurnLog
from rl_core.rollout.chat.text import Encoded
from rl_core.serving.api_errors import ApiError
from rl_core.serving.endpoint import Endpoint
from rl_core.serving.engine import Asked, EngineFailed, Scored, Token
from rl_core.serving.schema import Asking

OVERRULED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "min_tokens",
    "seed",
)
"""Parameters of requests in whose place the recipe's sampling is used."""
ENDS_WITHIN_S = 2
"""Seconds that answers in progress have when the endpoint ends."""


class Desk(Protocol):
    """Takes the requests of an episode."""

    def ask(self, turn: Turn, asked: Asked, stream: ReplyStream) -> None:
        """Put a request in the queue."""
        ...

    def withdraw(self, turn: Turn) -> None:
        """Take a request back whose client is gone."""
        ...

    def delivered(self, turn: Turn) -> None:
        """Note that the agent is given the whole reply."""
        ...


class ReplyStream:
    """The tokens of a reply, all at once when it is sampled."""

    def __init__(self, turn: Turn, desk: Desk) -> None:
        self.turn, self._desk = turn, desk
        self._loop = asyncio.get_running_loop()
        self._sampled: asyncio.Future[Reply] = self._loop.create_future()
        self._place = 0

    def __aiter__(self) -> AsyncIterator[Token]:
        return self

    async def __anext__(self) -> Token:
        reply = await asyncio.shield(self._sampled)
        place, self._place = self._place, self._place + 1
        last = len(reply.token_ids) - 1
        if place > last:
            raise StopAsyncIteration
        if place == last:
            self._desk.delivered(self.turn)
        reason = reply.stop_reason if place == last else None
        return Token(0, reply.token_ids[place], reply.log_probs[place], stop_reason=reason)

    def cancel(self) -> None:
        """Give up what is not sampled yet."""
        if not self._sampled.done():
            self._sampled.cancel()
            self._desk.withdraw(self.turn)

    def deliver(self, reply: Reply) -> None:
        """Hand over the reply, from another thread."""
        self._call(lambda: self._sampled.done() or self._sampled.set_result(reply))

    def fail(self, why: str) -> None:
        """Answer the request with an error, from another thread."""
        error = EngineFailed(why)
        self._call(lambda: self._sampled.done() or self._sampled.set_exception(error))

    def _call(self, work: Callable[[], object]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work)


class EpisodeEngine:
    """Engine of one episode, whose requests wait until the rollout decodes them."""

    def __init__(self, log: TurnLog, desk: Desk) -> None:
        self.log, self.desk = log, desk

    def generate(self, prompt: Encoded, asked: Asked) -> ReplyStream:
        """Put a request in the queue. Raises: ApiError when it wants what a rollout has not."""
        if asked.num_likely:
            raise ApiError(
                "top_logprobs: a rollout knows the log-probabilities of sampled tokens alone",
                "top_logprobs",
            )
        turn = self.log.begin(prompt)
        stream = ReplyStream(turn, self.desk)
        self.desk.ask(turn, asked, stream)
        return stream

    async def score(self, prompt_token_ids: Sequence[int], num_likely: int) -> list[Scored]:
        """Raises: ApiError."""
        raise ApiError("echo: a rollout does not score prompts", "echo")

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class EpisodeEndpoint(Endpoint):
    """Endpoint of one episode; any name of a model is right, since agents have one in their
    code."""

    log: TurnLog
    note: Callable[[str], None]
    """Is told of parameters that change nothing."""

    def check(self, request: Asking) -> None:
        """Accept a request, with a note of parameters that the recipe decides."""
        given = [name for name in OVERRULED if name in request.model_fields_set]
        if given:
            self.note(
                f"{', '.join(given)} of its requests change nothing: sampling is the recipe's"
            )

    def check_model(self, name: str) -> None:
        """Accept any name."""

    def encode(self, messages: list[Message], tools: Tools) -> Conversation:
        """Return the tokens of a conversation, with the sampled tokens of earlier replies."""
        return self.log.encode(messages, tools)

    def answered(self, messages: list[Message], prompt: list[int], said: Message) -> None:
        """Keep what was said, so that a later request can go on with it."""
        self.log.answered(messages, prompt, said)


@contextmanager
def listening(app: Any) -> Iterator[str]:
    """Serve an application on a free port of this machine for the block. Yields: its address.

    Raises: WorkerDied when the server does not start.
    """
    import uvicorn

    config = uvicorn.Config(
        app, log_level="error", access_log=False, timeout_graceful_shutdown=ENDS_WITHIN_S
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise WorkerDied("the endpoint of the agents did not start")
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
