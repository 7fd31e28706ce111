"""Replies that were given up and go on later: with the same weights they become what they would
have been, and with others each token names its own."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch

from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Reply, Request, Sampling, StopReason
from schemas.sections.sampling import SamplingConfig
from tests.models.decoding.test_decode import (
    CPU,
    PAD,
    forward_log_probs,
    policy,
    prompts,
)

__all__ = ["policy", "prompts"]

SIBLINGS, NEW_TOKENS = 3, 14


def sampled(
    policy: CausalLMPolicy,
    requests: list[Request],
    sampling: Sampling,
    enough: int | None = None,
    seed: int = 0,
) -> list[Reply]:
    generator = torch.Generator().manual_seed(seed)
    return decode(policy, requests, sampling, generator, CPU, enough=enough)


def asked(prompts: list[list[int]]) -> list[Request]:
    return [Request(one, SIBLINGS, NEW_TOKENS, group=place) for place, one in enumerate(prompts)]


def racing(prompts: list[list[int]]) -> list[Request]:
    """Requests of which the first group ends sooner, by its room alone."""
    first, *others = asked(prompts)
    return [replace(first, room=4), *others]


def gone_on(requests: list[Request], replies: list[Reply]) -> list[Request]:
    """Requests for what the given-up replies still lack."""
    found = []
    for place, reply in enumerate(replies):
        if reply.stop_reason is StopReason.GIVEN_UP:
            found.append(replace(requests[place // SIBLINGS], num_replies=1, begun=reply))
    return found


def test_a_greedy_reply_becomes_what_it_would_have_been(
    policy: CausalLMPolicy, prompts: list[list[int]]
) -> None:
    sampling, requests = Sampling(NEW_TOKENS, 0.0, (3,), PAD), asked(prompts)
    whole = sampled(policy, requests, sampling)
    given_up = sampled(policy, racing(prompts), sampling, enough=1)
    left = gone_on(requests, given_up)
    assert len(left) == 2 * SIBLINGS
    assert {len(one.begun.token_ids) for one in left if one.begun is not None} == {4}
    before = copy.deepcopy(left)
    again = sampled(policy, left, sampling)
    for reply, expected in zip(again, whole[SIBLINGS:], strict=True):
        assert reply.token_ids == expected.token_ids
        assert reply.stop_reason is expected.stop_reason
        assert reply.log_probs == pytest.approx(expected.log_probs, abs=1e-4)
    assert left == before, "what is carried over is left as it was"


def test_each_token_names_the_weights_that_drew_it(
    policy: CausalLMPolicy, prompts: list[list[int]]
) -> None:
    other = faded(policy)
    choice = SamplingConfig(top_k=7, repetition_penalty=1.2)
    sampling = Sampling(NEW_TOKENS, 0.8, (3,), PAD, choice=choice, records_support=True, version=4)
    requests = racing(prompts)
    left = gone_on(requests, sampled(policy, requests, sampling, enough=1))
    assert left
    again = sampled(other, left, replace(sampling, version=5), seed=1)
    for request, reply in zip(left, again, strict=True):
        assert request.begun is not None
        num_before, num_tokens = len(request.begun.token_ids), len(reply.token_ids)
        assert reply.versions == [4] * num_before + [5] * (num_tokens - num_before)
        assert reply.token_ids[:num_before] == request.begun.token_ids
        assert reply.log_probs[:num_before] == request.begun.log_probs
        assert reply.support is not None and len(reply.support) == num_tokens
        assert len(reply.log_probs) == num_tokens > num_before


def test_what_goes_on_is_drawn_by_the_new_weights(
    policy: CausalLMPolicy, prompts: list[list[int]]
) -> None:
    other = faded(policy)
    sampling, requests = Sampling(NEW_TOKENS, 1.0, (3,), PAD, version=0), racing(prompts)
    left = gone_on(requests, sampled(policy, requests, sampling, enough=1))
    again = sampled(other, left, replace(sampling, version=1), seed=1)
    texts = [one.token_ids for one in left]
    said = [forward_log_probs(one, texts, again, 1.0) for one in (policy, other)]
    for row, reply in enumerate(again):
        expected = [said[version][row][place] for place, version in enumerate(reply.versions)]
        assert reply.log_probs == pytest.approx(expected, abs=2e-4)


def test_a_group_that_is_awaited_holds_up_the_others(
    policy: CausalLMPolicy, prompts: list[list[int]]
) -> None:
    sampling = Sampling(NEW_TOKENS, 1.0, (3,), PAD)
    requests = racing(prompts)
    usual = sampled(policy, requests, sampling, enough=1)
    slow = next(row // SIBLINGS for row, one in enumerate(usual) if is_given_up(one))
    requests[slow] = replace(requests[slow], is_awaited=True)
    replies = sampled(policy, requests, sampling, enough=1)
    own = replies[slow * SIBLINGS : (slow + 1) * SIBLINGS]
    assert not any(is_given_up(one) for one in own)
    assert sum(map(is_given_up, replies)) < sum(map(is_given_up, usual))


def faded(policy: CausalLMPolicy) -> CausalLMPolicy:
    """A copy with smaller weights."""
    other = copy.deepcopy(policy)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.9)
    return other


def is_given_up(reply: Reply) -> bool:
    return reply.stop_reason is StopReason.GIVEN_UP
