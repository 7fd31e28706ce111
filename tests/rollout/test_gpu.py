"""Decoding by CUDA graphs: transformers' replies, whichever rows leave and however long they
get."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.decoding import graphed_steps, next_states
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Reply, Request, Sampling
from tests.models.decoding.test_graphed_steps import assert_alike
from tests.models.decoding.test_plain_decoder import PLAIN, policy_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU"),
]


def play(policy: CausalLMPolicy, *, graphs: bool = True) -> list[Reply]:
    """Replies to two ragged prompts, whose rows leave the batch one by one."""
    requests = [Request([5, 6, 7, 8, 9, 10], 4, 60), Request([11, 12], 4, 60)]
    sampling = Sampling(60, 1.0, tuple(range(80, 84)), 0)
    generator = torch.Generator("cuda").manual_seed(0)
    return decode(policy, requests, sampling, generator, torch.device("cuda"), graphs=graphs)


@pytest.mark.parametrize("name", PLAIN)
def test_recorded_steps_say_what_transformers_says(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graphed_steps, "ROOM", 16)
    policy = policy_of(PLAIN[name])
    policy.to("cuda")
    assert_alike(policy, "cuda")


@pytest.mark.parametrize("name", PLAIN)
def test_replies_are_those_without_graphs(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(graphed_steps, "ROOM", 16)
    recordings: list[int] = []
    record = graphed_steps.recorded
    monkeypatch.setattr(graphed_steps, "recorded", lambda run: recordings.append(1) or record(run))
    policy = policy_of(PLAIN[name])
    policy.to("cuda")
    ours = play(policy)
    assert recordings
    recordings.clear()
    theirs = play(policy, graphs=False)
    assert not recordings
    assert [one.token_ids for one in ours] == [one.token_ids for one in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-4)
    assert len({len(one.token_ids) for one in ours}) > 2, "rows leave"


def test_what_asks_the_gpu_for_a_number_is_refused_by_name():
    # A recording that failed leaves a process of no further use.
    code = "import torch\nfrom rl_core.models.decoding.graphed_steps import recorded\n"
    code += "number = torch.ones(1, device='cuda')\nrecorded(lambda: print(number.item()))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (
        "cannot be recorded as a CUDA graph" in ended.stderr
        and "rollout.cuda_graphs=false" in ended.stderr
    )


def test_in_bfloat16_a_plain_decoder_is_known_as_one():
    policy = policy_of(PLAIN["llama"], torch.bfloat16)
    policy.to("cuda")
    play(policy)
    assert next_states._is_plain_decoder[policy.language_model.model]
