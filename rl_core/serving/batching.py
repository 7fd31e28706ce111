"""Engine in this process: one thread decodes, and requests join and leave its batch between
tokens."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from rl_core.errors import RLTrainError
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.decoding.continuous.joined_batches import JoinedBatches
from rl_core.models.decoding.decode import Draw, End, read_prompts
from rl_core.models.decoding.request import Reply, Request
from rl_core.models.decoding.stop_strings import TextOf
from rl_core.models.media import PromptMedia
from rl_core.rollout.chat.text import Encoded
from rl_core.serving.engine import Asked, EngineFailed, EngineFull, Likely, Scored, Token

MAX_ROWS = 32
"""Number of replies that are decoded at once."""
MAX_WAITING = 128
"""Number of requests that wait for a place in the batch."""
POSITIONS_AT_ONCE = 64
"""Number of a prompt's positions whose logits are in memory at once."""
Arrived: TypeAlias = "Token | list[Scored] | BaseException | None"


class InProcessEngine:
    """Decodes in a thread of its own.

    A token is computed as in a rollout. Which bits it has depends on the other rows of the batch,
    unless the policy is exact (`model.exact`) or the request is alone.
    Args: policy: on its device, not being trained. pad_id: of the tokenizer. text_of: text of a
    reply's tokens, in which stop strings are found.
    """

    def __init__(
        self,
        policy: CausalLMPolicy,
        pad_id: int,
        text_of: TextOf,
        *,
        max_rows: int = MAX_ROWS,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self.policy, self.pad_id, self.text_of = policy, pad_id, text_of
        self.device = next(policy.parameters()).device
        self.max_rows, self.max_waiting = max_rows, max_waiting
        self._changed = threading.Condition()
        self._waiting: deque[_Job] = deque()
        self._closing = False
        self._batches = JoinedBatches[_Row](policy, pad_id, self.device, {})
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    def generate(self, prompt: Encoded, asked: Asked) -> Stream:
        """Put a request in the queue. Args: prompt: tokens, and the pictures among them. Raises:
        EngineFull when it is full."""
        return self._put(prompt, asked, 0)

    async def score(self, prompt_token_ids: Sequence[int], num_likely: int) -> list[Scored]:
        """Return the log-probabilities of a prompt's tokens, at temperature 1. Raises:
        EngineFull."""
        scored = await self._put(Encoded([*prompt_token_ids]), None, num_likely).next()
        assert isinstance(scored, list)
        return scored

    def close(self) -> None:
        """Stop, and end what is being sampled."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    @property
    def num_rows(self) -> int:
        """Number of replies that are being decoded."""
        return len(self._batches.rows)

    def _put(self, prompt: Encoded, asked: Asked | None, num_likely: int) -> Stream:
        loop = asyncio.get_running_loop()
        job = _Job(prompt.token_ids, prompt.media, asked, num_likely, loop)
        with self._changed:
            if self._closing:
                raise EngineFull("the server is stopping")
            if len(self._waiting) >= self.max_waiting:
                raise EngineFull(f"{self.max_waiting} requests wait already; try again later")
            self._waiting.append(job)
            self._changed.notify()
        return Stream(job)

    @torch.no_grad()
    def _run(self) -> None:
        with self.policy.ready_to_decode() as self._batches.packed:
            while (jobs := self._next()) is not None:
                for job in jobs:
                    self._begin(job)
                self._batches.step(_tell)
        stopped = EngineFull("the server is stopping")
        for job in [*self._waiting, *(row.job for row in self._batches.rows)]:
            job.tell(stopped)

    def _next(self) -> list[_Job] | None:
        """Wait for work. Returns: the requests that get a place now; None at the end."""
        with self._changed:
            while not (self._closing or self._waiting or self._batches.rows):
                self._changed.wait()
            if self._closing:
                return None
            admitted: list[_Job] = []
            free = self.max_rows - self.num_rows
            while self._waiting:
                job = self._waiting[0]
                if not job.cancelled and job.num_rows > free:
                    break
                self._waiting.popleft()
                if not job.cancelled:
                    free -= job.num_rows
                    admitted.append(job)
            return admitted

    def _begin(self, job: _Job) -> None:
        """Read a request's prompt; its rows join a batch where they can."""
        # What a model raises on one request is that request's answer.
        try:
            if job.asked is None:
                job.tell(self._scored(job))
                return
            rows = [self._row(job, job.asked, index) for index in range(job.num_rows)]
            request = Request(job.prompt, job.num_rows, room=1, media=job.media)
            self._batches.begin([request], rows)
        except Exception as error:
            job.tell(_failure(error))

    def _row(self, job: _Job, asked: Asked, index: int) -> _Row:
        request = Request(job.prompt, 1, asked.room, stop=asked.stop)
        end = End(request, asked.sampling, self.text_of)
        generator = torch.Generator(self.device).manual_seed(asked.seed + index)
        draw = Draw(asked.sampling, [job.prompt], generator, self.policy.is_exact)
        reply = Reply([], [], asked.sampling.cut_off(end.limit))
        return _Row(job, index, reply, end, draw, asked.num_likely)

    def _scored(self, job: _Job) -> list[Scored]:
        prompts = read_prompts(self.policy, [Request(job.prompt, 1, 1)], self.pad_id, self.device)
        following = torch.tensor(job.prompt[1:], device=self.device)
        scored = [Scored(job.prompt[0], None)]
        parts = zip(
            prompts.states_BPH[0, :-1].split(POSITIONS_AT_ONCE),
            following.split(POSITIONS_AT_ONCE),
            strict=True,
        )
        for states_NH, ids_N in parts:
            all_NV = self.policy.logits(states_NH).float().log_softmax(-1)
            for log_probs_V, token in zip(all_NV, ids_N.tolist(), strict=True):
                likely = _likely(log_probs_V, job.num_likely)
                scored.append(Scored(token, float(log_probs_V[token]), likely))
        return scored


@dataclass
class _Job:
    """A request in the queue or in a batch."""

    prompt: list[int]
    media: PromptMedia | None
    asked: Asked | None
    """None to score the prompt."""
    num_likely: int
    loop: asyncio.AbstractEventLoop

    def __post_init__(self) -> None:
        self.arrived: asyncio.Queue[Arrived] = asyncio.Queue()
        self.cancelled = False
        self.num_left = self.num_rows

    @property
    def num_rows(self) -> int:
        if self.asked is None:
            return 1
        return self.asked.num_replies

    def tell(self, what: Arrived) -> None:
        """Hand something to the event loop that asked; one that is gone asks no more."""
        if self.cancelled or self.loop.is_closed():
            self.cancelled = True
            return
        self.loop.call_soon_threadsafe(self.arrived.put_nowait, what)


class Stream:
    """Tokens of one request, as they are sampled."""

    def __init__(self, job: _Job) -> None:
        self._job = job
        self._ended = False

    def __aiter__(self) -> AsyncIterator[Token]:
        return self

    async def __anext__(self) -> Token:
        if self._ended:
            raise StopAsyncIteration
        token = await self.next()
        if token is None:
            raise StopAsyncIteration
        assert isinstance(token, Token)
        return token

    async def next(self) -> Token | list[Scored] | None:
        """Return what comes next; None at the end."""
        try:
            arrived = await self._job.arrived.get()
        except asyncio.CancelledError:
            self._job.cancelled = True
            raise
        if isinstance(arrived, BaseException):
            self._ended = True
            raise arrived
        self._ended = arrived is None
        return arrived

    def cancel(self) -> None:
        """Stop sampling; its rows leave the batch before the next token."""
        self._job.cancelled = self._ended = True


@dataclass
class _Row:
    job: _Job
    index: int
    reply: Reply
    end: End
    draw: Draw
    num_likely: int

    @property
    def is_wanted(self) -> bool:
        return not self.job.cancelled

    def draw_from(self, logits_1V: Tensor) -> tuple[Tensor, bool]:
        """Draw the next token. Returns: it, [1], and true if more may follow."""
        likely: Likely = []
        if self.num_likely:
            likely = _likely(self.draw.scores(logits_1V)[0].log_softmax(-1), self.num_likely)
        token_1, log_prob_1 = self.draw(logits_1V, [0])
        token, log_prob = int(token_1), float(log_prob_1)
        goes_on = self.end.goes_on(self.reply, token, log_prob)
        reason = None if goes_on else self.reply.stop_reason
        self.job.tell(Token(self.index, token, log_prob, likely, reason))
        if not goes_on:
            self.job.num_left -= 1
            if not self.job.num_left:
                self.job.tell(None)
        return token_1, goes_on


def _tell(rows: Sequence[_Row], error: Exception) -> None:
    """Tell the requests of rows that cannot go on, each once."""
    for job in {id(row.job): row.job for row in rows}.values():
        job.tell(_failure(error))


def _failure(error: Exception) -> RLTrainError:
    """Return what a request is told; a defect is logged with its traceback."""
    if isinstance(error, RLTrainError):
        return error
    logging.getLogger(__name__).error("a request failed", exc_info=error)
    return EngineFailed(f"{type(error).__name__}: {error!s:.300}")


def _likely(log_probs_V: Tensor, count: int) -> Likely:
    if not count:
        return []
    top = log_probs_V.topk(min(count, len(log_probs_V)))
    return list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
