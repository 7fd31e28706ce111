"""Weights that are renewed while replies are decoded: each token is drawn by the weights that its
reply names, and by them alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from rl_core.kernels import Packed
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.decoding.decode import decode, may_be_batched
from rl_core.models.decoding.request import Reply, Request, Sampling, StopReason
from rl_core.models.decoding.stop_strings import StopStrings
from tests.models.checks.test_probe import KINDS, loaded, own_log_probs, saved
from tests.models.decoding.test_decode import (
    CPU,
    ENDS,
    PAD,
    forward_log_probs,
    play,
    policy,
    prompts,
)

__all__ = ["policy", "prompts"]

AT = [3, 4, 9]
"""Numbers of decoding steps after which the weights change."""
SIBLINGS, NEW_TOKENS = 3, 12


class Fading:
    """Weights that become smaller after given steps. `versions` keeps a copy of each."""

    def __init__(self, policy: CausalLMPolicy, at: Sequence[int], factor: float = 0.9) -> None:
        self.policy, self.at, self.factor = policy, at, factor
        self.version, self.num_steps = 0, 0
        self.versions = [copy.deepcopy(policy)]
        self._ready = ExitStack()
        self.packed: Packed = self._ready.enter_context(policy.ready_to_decode())

    def is_due(self) -> bool:
        self.num_steps += 1
        return self.num_steps in self.at

    def load(self) -> None:
        self._ready.close()
        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.mul_(self.factor)
        self.version += 1
        self.versions.append(copy.deepcopy(self.policy))
        self.packed = self._ready.enter_context(self.policy.ready_to_decode())


@pytest.fixture
def fading(policy: CausalLMPolicy) -> Iterator[Fading]:
    renewal = Fading(copy.deepcopy(policy), AT)
    yield renewal
    renewal._ready.close()


def renewed(
    renewal: Fading, prompts: list[list[int]], *, stop: StopStrings | None = None, seed: int = 0
) -> list[Reply]:
    sampling = Sampling(NEW_TOKENS, 1.0, ENDS if stop is None else (3,), PAD)
    requests = [Request(prompt, SIBLINGS, NEW_TOKENS, stop=stop) for prompt in prompts]
    return decode(
        renewal.policy,
        requests,
        sampling,
        torch.Generator().manual_seed(seed),
        CPU,
        text_of=lambda ids, keep=frozenset(): "".join(f"<{one}>" for one in ids),
        renewal=renewal,
    )


def test_each_token_has_the_log_probability_that_its_weights_give_it(
    fading: Fading, prompts: list[list[int]]
):
    replies = renewed(fading, prompts)
    assert {version for reply in replies for version in reply.versions} == {0, 1, 2, 3}
    of_each = [prompt for prompt in prompts for _ in range(SIBLINGS)]
    said = [forward_log_probs(one, of_each, replies, 1.0) for one in fading.versions]
    for row, reply in enumerate(replies):
        places = range(len(reply.token_ids))
        assert reply.versions == [sum(at <= place for at in AT) for place in places]
        expected = [said[reply.versions[place]][row][place] for place in places]
        assert reply.log_probs == pytest.approx(expected, abs=2e-4)
        others = [said[(reply.versions[place] + 1) % 4][row][place] for place in places]
        assert reply.log_probs != pytest.approx(others, abs=2e-4)


def test_weights_that_stay_the_same_draw_the_same_tokens(
    policy: CausalLMPolicy, prompts: list[list[int]]
):
    renewal = Fading(copy.deepcopy(policy), AT, factor=1.0)
    plain = play(
        policy, prompts, siblings=SIBLINGS, temperature=1.0, eos_ids=ENDS, max_new_tokens=NEW_TOKENS
    )
    again = renewed(renewal, prompts)
    assert [reply.token_ids for reply in again] == [reply.token_ids for reply in plain]
    assert [reply.stop_reason for reply in again] == [reply.stop_reason for reply in plain]
    assert len({len(reply.token_ids) for reply in plain}) > 2


def test_a_limit_counts_the_tokens_before_a_renewal(fading: Fading, prompts: list[list[int]]):
    sampling = Sampling(NEW_TOKENS, 1.0, (), PAD)
    requests = [Request(prompts[0], 2, room=5), Request(prompts[1], 2, room=NEW_TOKENS)]
    replies = decode(
        fading.policy, requests, sampling, torch.Generator().manual_seed(0), CPU, renewal=fading
    )
    assert [len(reply.token_ids) for reply in replies] == [5, 5, NEW_TOKENS, NEW_TOKENS]
    assert {reply.stop_reason for reply in replies} == {StopReason.LENGTH}


def test_a_stop_string_may_begin_before_a_renewal(policy: CausalLMPolicy, prompts: list[list[int]]):
    still = Fading(copy.deepcopy(policy), [], factor=1.0)
    first = renewed(still, prompts[:1], stop=StopStrings.of(["none"], frozenset()))[0]
    ids = first.token_ids
    string = f"<{ids[AT[0] - 1]}><{ids[AT[0]]}>"
    renewal = Fading(copy.deepcopy(policy), AT[:1], factor=1.0)
    replies = renewed(renewal, prompts[:1], stop=StopStrings.of([string], frozenset()))
    assert replies[0].stop_reason is StopReason.STOP
    assert replies[0].token_ids == ids[: AT[0] + 1]
    assert replies[0].versions == [0] * AT[0] + [1]


@pytest.mark.parametrize("kind", KINDS)
def test_every_family_reads_its_rows_again(kind: str, tmp_path: Path):
    model, family = saved(kind, tmp_path), loaded(tmp_path)
    generator = torch.Generator().manual_seed(3)
    texts = [torch.randint(5, 97, (length,), generator=generator).tolist() for length in (4, 9)]
    requests = [Request(text, SIBLINGS, 8) for text in texts]
    renewal = Fading(family, [2, 5], factor=1.0)
    replies = decode(family, requests, Sampling(8, 1.0, (1,), 0), generator, CPU, renewal=renewal)
    assert max(reply.versions[-1] for reply in replies) == (2 if may_be_batched(family) else 0)
    for index, reply in enumerate(replies):
        own = own_log_probs(model, texts[index // SIBLINGS], reply.token_ids)
        torch.testing.assert_close(torch.tensor(reply.log_probs), own, atol=1e-4, rtol=0)
