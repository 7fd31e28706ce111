"""Requests with the same prompt are decoded as siblings, each with its own random numbers."""

from pathlib import Path

import pytest
import torch

from rl_core.models.causal_lm import CausalLMPolicy, load_policy
from rl_core.models.decoding import decode as decoding
from rl_core.models.decoding.continuous.equal_prompts import each_once, side_by_side
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Reply, Request, Sampling
from rl_core.models.media import PromptMedia
from schemas.recipe import ModelConfig

A, B = [5, 6, 7, 8], [9, 10]
MIXED = [
    Request(A, 1, 5, seed=11),
    Request(B, 2, 9, seed=12),
    Request(A, 1, 9, seed=13),
    Request(A, 1, 3, seed=14),
]


@pytest.fixture(scope="module")
def policy(tiny_model_dir: Path) -> CausalLMPolicy:
    return load_policy(
        str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir), exact=True)
    ).eval()


def decoded(policy: CausalLMPolicy, requests: list[Request]) -> list[Reply]:
    sampling = Sampling(9, 1.0, (-1,), 0)
    return decode(policy, requests, sampling, torch.Generator(), torch.device("cpu"))


def test_each_prompt_is_read_once_and_replies_are_those_of_each_alone(policy, monkeypatch):
    alone = [reply for request in MIXED for reply in decoded(policy, [request])]
    read = []
    monkeypatch.setattr(
        decoding,
        "read_prompts",
        lambda policy, requests, *rest, really=decoding.read_prompts: (
            read.extend(one.token_ids for one in requests) or really(policy, requests, *rest)
        ),
    )
    together = decoded(policy, MIXED)
    assert read == [A, B]
    assert [len(reply.token_ids) for reply in together] == [5, 9, 9, 9, 3]
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-5)


def test_requests_without_random_numbers_of_their_own_keep_their_order():
    plain = [Request(A, 1, 5), Request(B, 1, 5), Request(A, 1, 5)]
    assert side_by_side(plain) == [0, 1, 2]
    assert each_once(plain) == plain


def test_equal_tokens_with_other_pictures_are_other_prompts():
    one, other = (PromptMedia({"pixel_values": torch.full((1, 3), v)}, 1) for v in (0.0, 1.0))
    shown = [Request(A, 1, 5, media, seed=1) for media in (one, None, other, one)]
    assert side_by_side(shown) == [0, 3, 1, 2]
    read = each_once([shown[place] for place in side_by_side(shown)])
    assert [(request.media, request.num_replies) for request in read] == [
        (one, 2),
        (None, 1),
        (other, 1),
    ]
