"""Replies of a server in several requests each: what they are together is one reply, with newer
weights and without."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rl_core.distributed.servers.server_sampler import ServerSampler
from rl_core.errors import WorkerError
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Reply, Request, Sampling, StopReason
from rl_core.models.decoding.stop_strings import StopStrings
from rl_core.models.decoding.token_choice import StepSupport
from rl_core.rollout.vllm_process.server import Drawn, Prompt
from schemas.sections.sampling import SamplingConfig
from tests.models.decoding.continuous.test_renewal import Fading
from tests.models.decoding.test_decode import (
    CPU,
    ENDS,
    PAD,
    forward_log_probs,
    policy,
    prompts,
)

__all__ = ["policy", "prompts"]

PIECE, SIBLINGS, NEW_TOKENS = 3, 3, 11


class Server:
    """Answers as a server does, with a policy in this process that knows no stop strings."""

    def __init__(self, policy: CausalLMPolicy) -> None:
        self.policy = policy
        self.asked: list[list[Prompt]] = []
        self.choices: list[SamplingConfig] = []

    def call(
        self,
        method: str,
        prompts: Sequence[Prompt],
        temperature: float,
        eos_ids: tuple[int, ...],
        choice: SamplingConfig,
    ) -> list[Drawn]:
        assert method == "generate"
        self.asked.append(list(prompts))
        self.choices.append(choice)
        drawn = []
        for prompt in prompts:
            for index in range(prompt.num_replies):
                seed, most = prompt.seed + index, prompt.max_new_tokens
                sampling = Sampling(most, temperature, eos_ids, PAD, choice=choice)
                request = Request(prompt.token_ids, 1, most, seed=seed)
                (reply,) = decode(self.policy, [request], sampling, torch.Generator(), CPU)
                ended = reply.stop_reason is StopReason.EOS
                drawn.append(Drawn(reply.token_ids, reply.log_probs, ended))
        return drawn


def text_of(ids: list[int], keep: Any = frozenset()) -> str:
    return "".join(f"<{one}>" for one in ids)


def sampler(
    server: Server, sampling: Sampling | None = None, piece: int = PIECE, **options: Any
) -> ServerSampler:
    sampling = sampling or Sampling(NEW_TOKENS, 0.0, ENDS, PAD)
    return ServerSampler(
        server, sampling, torch.Generator().manual_seed(0), text_of, piece, **options
    )


def asked(prompts: Sequence[list[int]], **options: Any) -> list[Request]:
    return [
        Request(prompt, SIBLINGS, NEW_TOKENS, group=number, **options)
        for number, prompt in enumerate(prompts)
    ]


def told(replies: Sequence[Reply]) -> list[tuple[list[int], StopReason]]:
    return [(reply.token_ids, reply.stop_reason) for reply in replies]


@pytest.fixture
def server(policy: CausalLMPolicy) -> Server:
    return Server(policy)


@pytest.fixture
def fading(policy: CausalLMPolicy) -> Iterator[Fading]:
    renewal = Fading(copy.deepcopy(policy), [1, 3])
    yield renewal
    renewal._ready.close()


def test_pieces_are_the_whole_reply(server: Server, prompts: list[list[int]]):
    whole = sampler(server)(asked(prompts))
    assert len(server.asked) == 1
    pieces = sampler(server)(asked(prompts), len(prompts))
    assert told(pieces) == told(whole)
    for one, other in zip(pieces, whole, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)
    assert len(server.asked) == 1 + -(-NEW_TOKENS // PIECE)
    assert all(one.num_replies == SIBLINGS for one in server.asked[1])
    assert all(one.num_replies == 1 for later in server.asked[2:] for one in later)
    assert all(one.max_new_tokens <= PIECE for later in server.asked[1:] for one in later)


def test_no_two_requests_have_the_same_random_numbers(server: Server, prompts: list[list[int]]):
    sampler(server, Sampling(NEW_TOKENS, 1.0, (), PAD))(asked(prompts), len(prompts))
    seeds = []
    for round in server.asked:
        seeds += [one.seed + index for one in round for index in range(one.num_replies)]
    assert len(set(seeds)) == len(seeds) > len(prompts) * SIBLINGS * 3
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_string_that_spans_two_requests_ends_the_reply(server: Server, prompts: list[list[int]]):
    (free, *_) = sampler(server, Sampling(NEW_TOKENS, 0.0, (), PAD))(asked(prompts[:1]))
    spanning = text_of(free.token_ids[PIECE - 1 : PIECE + 1])
    stop = StopStrings.of([spanning])
    assert stop is not None
    end = stop.cut(free.token_ids, 0, text_of)
    assert end is not None
    options = Sampling(NEW_TOKENS, 0.0, (), PAD)
    replies = sampler(server, options)(asked(prompts[:1], stop=stop), 1)
    assert told(replies) == [(free.token_ids[:end], StopReason.STOP)] * SIBLINGS
    assert [len(reply.log_probs) for reply in replies] == [end] * SIBLINGS


def test_the_fewest_tokens_are_counted_over_all_requests(server: Server, prompts: list[list[int]]):
    choice = SamplingConfig(min_new_tokens=5)
    sampling = Sampling(NEW_TOKENS, 1.0, tuple(range(40)), PAD, choice=choice, records_support=True)
    replies = sampler(server, sampling)(asked(prompts), len(prompts))
    assert [one.min_new_tokens for one in server.choices[:3]] == [5, 2, 0]
    for reply in replies:
        assert len(reply.token_ids) >= 5 and reply.support is not None
        assert len(reply.support) == len(reply.token_ids)
        is_cut = reply.support.sizes_T < -1
        assert is_cut.tolist() == [place < 5 for place in range(len(reply.token_ids))]


def test_groups_are_given_up_and_go_on_later(server: Server, prompts: list[list[int]]):
    sampling = Sampling(NEW_TOKENS, 0.0, (), PAD, version=7)
    short, *long = asked(prompts)
    whole = sampler(server, sampling)(long)
    replies = sampler(server, sampling)([*long, replace(short, room=2)], 1)
    late, in_time = replies[:-SIBLINGS], replies[-SIBLINGS:]
    assert [len(reply.token_ids) for reply in in_time] == [2] * SIBLINGS
    assert {reply.stop_reason for reply in in_time} == {StopReason.LENGTH}
    assert [len(reply.token_ids) for reply in late] == [PIECE] * len(late)
    assert {reply.stop_reason for reply in late} == {StopReason.GIVEN_UP}
    begun = []
    for number, reply in enumerate(late):
        begun.append(replace(long[number // SIBLINGS], num_replies=1, begun=reply))
    ended = sampler(server, replace(sampling, version=8))(begun, len(begun))
    assert told(ended) == told(whole)
    for reply in ended:
        assert reply.versions == [7] * PIECE + [8] * (NEW_TOKENS - PIECE)


class Noting(Server):
    """Says that no other token than the drawn one could be drawn."""

    def call(self, *asked: Any) -> list[Drawn]:
        said = []
        for one in super().call(*asked):
            steps = [StepSupport(np.array([token], np.int32), True) for token in one.token_ids]
            said.append(replace(one, support=steps))
        return said


def test_the_record_of_what_could_be_drawn_goes_on_with_a_reply(
    policy: CausalLMPolicy, prompts: list[list[int]]
):
    server = Noting(policy)
    sampling = Sampling(NEW_TOKENS, 0.0, (), PAD, records_support=True)
    short, long, *_ = asked(prompts)
    late = sampler(server, sampling)([long, replace(short, room=2)], 1)[:SIBLINGS]
    begun = [replace(long, num_replies=1, begun=reply) for reply in late]
    ended = sampler(server, sampling)(begun, len(begun))
    text = text_of(ended[0].token_ids[3:5])
    stop = StopStrings.of([text])
    stopped = sampler(server, sampling)([replace(long, stop=stop)], 1)
    assert {reply.stop_reason for reply in stopped} == {StopReason.STOP}
    for reply in [*late, *ended, *stopped]:
        assert reply.support is not None
        assert reply.support.ids.tolist() == reply.token_ids
        assert reply.support.sizes_T.tolist() == [1] * len(reply.token_ids)


def test_each_token_has_the_log_probability_of_its_weights(
    fading: Fading, prompts: list[list[int]]
):
    server = Server(fading.policy)
    sampling = Sampling(NEW_TOKENS, 1.0, ENDS, PAD)
    replies = sampler(server, sampling, renewal=fading)(asked(prompts))
    assert {version for reply in replies for version in reply.versions} == {0, 1, 2}
    of_each = [prompt for prompt in prompts for _ in range(SIBLINGS)]
    said = [forward_log_probs(one, of_each, replies, 1.0) for one in fading.versions]
    for row, reply in enumerate(replies):
        places = range(len(reply.token_ids))
        assert reply.versions == [sum(at * PIECE <= place for at in (1, 3)) for place in places]
        expected = [said[reply.versions[place]][row][place] for place in places]
        assert reply.log_probs == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("length", [0, PIECE - 1])
@pytest.mark.parametrize("enough", [None, 1])
def test_an_answer_that_ends_for_no_reason_ends_the_rollout(
    server: Server, prompts: list[list[int]], length: int, enough: int | None
):
    class Short(Server):
        def call(self, method: str, prompts: Sequence[Prompt], *chosen: Any) -> list[Drawn]:
            one = Drawn([7] * length, [-1.0] * length, ended=False)
            return [one] * sum(prompt.num_replies for prompt in prompts)

    number = NEW_TOKENS if enough is None else PIECE
    with pytest.raises(WorkerError, match=f"after {length} of {number} tokens without saying why"):
        sampler(Short(server.policy))(asked(prompts), enough)
