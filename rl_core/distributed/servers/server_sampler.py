"""Samplers that ask a server, or several as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, TypeAlias

import torch

from rl_core.distributed.servers.server_reply import SEEDS, ServerReply
from rl_core.models.decoding.continuous.arrivals import Arrival
from rl_core.models.decoding.continuous.first_to_end import FirstToEnd
from rl_core.models.decoding.continuous.renewal import Renewal
from rl_core.models.decoding.request import Reply, Request, Sampling
from rl_core.models.decoding.stop_strings import TextOf
from rl_core.rollout.vllm_process.server import Drawn, Prompt
from schemas.sections.sampling import SamplingConfig

Chosen: TypeAlias = "tuple[float, tuple[int, ...], SamplingConfig]"
"""Temperature, tokens that end a reply, and which tokens may be drawn."""


class Called(Protocol):
    """Calls the methods of a `VllmServer`, or of what stands in its place."""

    def call(self, method: str, *args: object) -> Any:
        """Return the answer of a method."""
        ...


@dataclass(frozen=True)
class ServerSampler:
    """Samples with a server, which has begun a rollout.

    Args: generator: of the seeds of requests that have none. text_of: text of a reply's tokens.
    piece: most tokens of an answer, where replies may be given up or go on with newer weights
    after it. renewal: newer weights, which may come meanwhile.
    """

    server: Called
    sampling: Sampling
    generator: torch.Generator
    text_of: TextOf
    piece: int
    renewal: Renewal | None = None

    def __call__(self, requests: list[Request], enough: int | None = None, /) -> list[Reply]:
        """Return the replies in order, group by group. Args: enough: as of `decode`; replies that
        end with the same answer count as ending together."""
        device = self.generator.device
        drawn_seeds = torch.randint(
            SEEDS, (len(requests),), generator=self.generator, device=device
        ).tolist()
        piece = None if enough is None and self.renewal is None else self.piece
        under_way: list[ServerReply] = []
        for request, drawn_seed in zip(requests, drawn_seeds, strict=True):
            seed = drawn_seed if request.seed is None else request.seed
            for index in range(request.num_replies):
                # As vLLM counts up the seeds of siblings.
                given = request, seed + index, self.sampling, self.text_of, piece
                under_way.append(ServerReply(*given))
        replies = [one.reply for one in under_way]
        first_to_end = FirstToEnd(requests, enough)
        rows, sizes = list(range(len(replies))), [one.num_replies for one in requests]
        while rows:
            drawn = self._ask([under_way[row] for row in rows], sizes)
            staying = []
            for place, (row, one) in enumerate(zip(rows, drawn, strict=True)):
                if under_way[row].add(one, self._version):
                    staying.append(place)
            if first_to_end.is_over(rows, staying, replies):
                for place in staying:
                    under_way[rows[place]].finish()
                break
            rows = [rows[place] for place in staying]
            sizes = [1] * len(rows)
            if rows and self.renewal is not None and self.renewal.is_due():
                self.renewal.load()
        return replies

    def answers(self) -> ServerAnswers:
        """Return replies that requests join as the server has room for them."""
        return ServerAnswers(self.server, self.sampling, self.text_of)

    @property
    def _version(self) -> int | None:
        return self.sampling.version if self.renewal is None else self.renewal.version

    def _ask(self, replies: Sequence[ServerReply], sizes: Sequence[int]) -> list[Drawn]:
        """Return an answer for each reply. Args: sizes: of the groups of siblings, in order, each
        of which is one request."""
        prompts, place = list[Prompt](), 0
        for size in sizes:
            prompts.append(replies[place].prompt(size))
            place += size
        return self.server.call("generate", prompts, *_chosen(self.sampling, replies[0]))


class ServerAnswers:
    """Replies of a server, each asked for by itself. Args: as of `ServerSampler`."""

    def __init__(self, server: Called, sampling: Sampling, text_of: TextOf) -> None:
        self._server, self._sampling, self._text_of = server, sampling, text_of
        self._asked: dict[int, tuple[Arrival, ServerReply]] = {}
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
            reply = ServerReply(request, request.seed, self._sampling, self._text_of)
            came[number] = reply.prompt(1)
            self._asked[number] = arrival, reply
        if came:
            self._server.call("put", came, *_chosen(self._sampling))

    def step(self) -> list[tuple[Arrival, Reply]]:
        """Wait a moment for replies."""
        given_up = [number for number, (one, _) in self._asked.items() if not one.is_wanted()]
        for number in given_up:
            del self._asked[number]
        drawn: dict[int, Drawn] = self._server.call("advance", given_up)
        ended = []
        for number, one in drawn.items():
            arrival, reply = self._asked.pop(number)
            reply.add(one, self._sampling.version)
            ended.append((arrival, reply.reply))
        return ended


def _chosen(sampling: Sampling, reply: ServerReply | None = None) -> Chosen:
    """Return how the next tokens are drawn. Args: reply: has as many tokens as the others that are
    asked for; None is a new one."""
    choice, so_far = sampling.choice, 0 if reply is None else len(reply.reply.token_ids)
    if choice.min_new_tokens and so_far:
        left = max(0, choice.min_new_tokens - so_far)
        choice = choice.model_copy(update={"min_new_tokens": left})
    return sampling.temperature, sampling.eos_ids, choice
