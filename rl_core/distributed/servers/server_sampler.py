"""Samplers that ask a vLLM server, or several as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from rl_core.models.decoding.continuous.arrivals import Arrival
from rl_core.models.decoding.request import Reply, Request, Sampling, StopReason
from rl_core.models.decoding.stop_strings import TextOf
from rl_core.models.decoding.token_choice import StepSupport, support_of
from rl_core.rollout.vllm_process.server import Drawn, Prompt
from schemas.sections.sampling import SamplingConfig

SEEDS = 2**62
Chosen: TypeAlias = "tuple[float, tuple[int, ...], SamplingConfig]"
"""Temperature, tokens that end a reply, and which tokens may be drawn."""


class Called(Protocol):
    """Calls the methods of a `VllmServer`, or of what stands in its place."""

    def call(self, method: str, *args: object) -> Any:
        """Return the answer of a method."""
        ...


@dataclass(frozen=True)
class ServerSampler:
    """Samples with a server, which has begun a rollout. Args: generator: of the seeds of requests
    that have none. text_of: text of a reply's tokens."""

    server: Called
    sampling: Sampling
    generator: torch.Generator
    text_of: TextOf

    def __call__(self, requests: list[Request], enough: int | None = None, /) -> list[Reply]:
        """Return the replies in order, group by group."""
        assert enough is None  # rollout.extra_prompts is refused with vLLM
        device = self.generator.device
        drawn_seeds = torch.randint(
            SEEDS, (len(requests),), generator=self.generator, device=device
        ).tolist()
        prompts = []
        for request, drawn_seed in zip(requests, drawn_seeds, strict=True):
            seed = drawn_seed if request.seed is None else request.seed
            prompts.append(_prompt(request, self.sampling, seed))
        drawn = self.server.call("generate", prompts, *_chosen(self.sampling))
        asked = [request for request in requests for _ in range(request.num_replies)]
        replies: list[Reply] = []
        for one, request in zip(drawn, asked, strict=True):
            replies.append(_reply(one, request, self.sampling, self.text_of))
        return replies

    def answers(self) -> ServerAnswers:
        """Return replies that requests join as the server has room for them."""
        return ServerAnswers(self.server, self.sampling, self.text_of)


class ServerAnswers:
    """Replies of a server, each asked for by itself. Args: as of `ServerSampler`."""

    def __init__(self, server: Called, sampling: Sampling, text_of: TextOf) -> None:
        self._server, self._sampling, self._text_of = server, sampling, text_of
        self._asked: dict[int, Arrival] = {}
        self._numbers = count()

    @property
    def num_running(self) -> int:
        """Number of replies under way."""
        return len(self._asked)

    def put(self, arrivals: Sequence[Arrival]) -> None:
        """Send requests to the server."""
        came: dict[int, Prompt] = {}
        for arrival in arrivals:
            request, number = arrival.request, next(self._numbers)
            assert request.num_replies == 1 and request.seed is not None
            came[number] = _prompt(request, self._sampling, request.seed)
            self._asked[number] = arrival
        if came:
            self._server.call("put", came, *_chosen(self._sampling))

    def step(self) -> list[tuple[Arrival, Reply]]:
        """Wait a moment for replies."""
        given_up = [number for number, one in self._asked.items() if not one.is_wanted()]
        for number in given_up:
            del self._asked[number]
        drawn: dict[int, Drawn] = self._server.call("advance", given_up)
        ended = []
        for number, one in drawn.items():
            arrival = self._asked.pop(number)
            reply = _reply(one, arrival.request, self._sampling, self._text_of)
            ended.append((arrival, reply))
        return ended


def _chosen(sampling: Sampling) -> Chosen:
    return sampling.temperature, sampling.eos_ids, sampling.choice


def _prompt(request: Request, sampling: Sampling, seed: int) -> Prompt:
    stop = () if request.stop is None else request.stop.strings
    pictures = () if request.media is None else request.media.pictures
    assert pictures or request.media is None, "the pictures were not kept"
    limit = sampling.limit(request)
    return Prompt(request.token_ids, request.num_replies, limit, seed, stop, pictures)


def _reply(drawn: Drawn, request: Request, sampling: Sampling, text_of: TextOf) -> Reply:
    """Return a reply of the server's, which ends where the project's own engines end it."""
    reason = StopReason.EOS if drawn.ended else sampling.cut_off(sampling.limit(request))
    reason = StopReason.STOP if drawn.stopped else reason
    length, at_least = len(drawn.token_ids), sampling.choice.min_new_tokens
    if request.stop is not None:
        # Texts of the two may differ in the control tokens that environments do not read.
        end = request.stop.cut(drawn.token_ids, at_least, text_of)
        if end is not None and (end < length or not drawn.ended):
            length, reason = end, StopReason.STOP
    reply = Reply(drawn.token_ids[:length], drawn.log_probs[:length], reason)
    if sampling.records_support:
        steps: list[StepSupport | None] = [None] * length
        if drawn.support is not None:
            steps = [*drawn.support[:length]]
        elif at_least:
            ends = StepSupport(np.array(sampling.eos_ids, np.int32), is_kept=False)
            steps = [ends if place < at_least else None for place in range(length)]
        reply.support = support_of(steps)
    return reply
