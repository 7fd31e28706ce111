"""Steps over rooms of fixed length say what transformers says, with a graph's one kind of work: the
same every time.

A graph is stood in for by the very function it would be recorded from, so all but the recording is
what a GPU does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.decoding import graphed_steps
from rl_core.models.decoding.graphed_steps import GraphedSteps, can_be_graphed
from rl_core.models.decoding.next_states import ByTransformers
from rl_core.models.decoding.plain_decoder import PlainDecoder, layer_by_layer, plain_decoder
from tests.models.decoding.test_plain_decoder import PLAIN, SMALL, policy_of

LENGTHS = (6, 2)
COUNTS = torch.tensor([4, 4])
LEAVING = {3: [0, 1, 2, 4, 5, 7], 9: [1, 4], 20: [1]}
"""Step -> the rows that stay, of those that are left."""


@pytest.fixture
def recordings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets functions stand for graphs of them, and rooms be small. What it gives grows with each
    recording."""
    made: list[int] = []

    def record(run: Callable[[], None]) -> Callable[[], None]:
        made.append(1)
        return run

    monkeypatch.setattr(graphed_steps, "recorded", record)
    monkeypatch.setattr(graphed_steps, "ROOM", 16)
    return made


def both(policy: CausalLMPolicy, device: str) -> tuple[GraphedSteps, ByTransformers]:
    """Steps after the same two prompts of different lengths."""
    model, counts_P = policy.language_model.model, COUNTS.to(device)
    attention_PL = (torch.arange(6) >= 6 - torch.tensor(LENGTHS)[:, None]).long().to(device)
    ids_PL = (
        torch.randint(3, 90, (2, 6), generator=torch.Generator().manual_seed(0)).to(device)
        * attention_PL
    )
    positions_PL = (attention_PL.cumsum(-1) - 1).clamp_min(0)

    def prefilled() -> Any:
        inputs = {"input_ids": ids_PL, "attention_mask": attention_PL, "position_ids": positions_PL}
        return model(**inputs, use_cache=True).past_key_values

    graphed = GraphedSteps(decoder(model), prefilled(), counts_P, attention_PL)
    return graphed, ByTransformers(model, prefilled(), counts_P, attention_PL)


def decoder(model: torch.nn.Module) -> PlainDecoder:
    plain = plain_decoder(model, layer_by_layer)
    assert plain is not None and can_be_graphed(plain)
    return plain


@torch.no_grad()
def assert_alike(policy: CausalLMPolicy, device: str = "cpu") -> None:
    """Token by token, whichever rows leave."""
    graphed, expected = both(policy, device)
    generator = torch.Generator().manual_seed(1)
    last_R = (torch.tensor(LENGTHS).repeat_interleave(COUNTS) - 1).to(device)
    for step in range(40):
        if step in LEAVING:
            rows = torch.tensor(LEAVING[step], device=device)
            graphed.select(rows)
            expected.select(rows)
            last_R = last_R[rows]
        tokens_R = torch.randint(3, 90, (len(last_R),), generator=generator).to(device)
        inputs = tokens_R, (last_R + 1 + step)[:, None]
        torch.testing.assert_close(
            graphed.step(*inputs), expected.step(*inputs), atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("name", PLAIN)
def test_steps_in_fixed_rooms_say_what_transformers_says(name: str, recordings: list[int]):
    assert_alike(policy_of(PLAIN[name]))
    # At first, for the rooms that start at 16 and 32, and when two rows of eight and one of two are
    # left. (Six are more than half: none then.)
    assert len(recordings) == 5


def test_adapters_count(recordings: list[int]):
    policy = policy_of(PLAIN["llama"])
    config = LoraConfig(
        r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
    )
    assert_alike(CausalLMPolicy(get_peft_model(policy.model, config)).eval())
    assert recordings


def test_angles_that_depend_on_the_length_are_not_recorded():
    scaled = LlamaConfig(
        **SMALL, rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    )
    plain = plain_decoder(
        policy_of((LlamaForCausalLM, scaled)).language_model.model, layer_by_layer
    )
    assert plain is not None and not can_be_graphed(plain)


def test_layers_that_are_not_linear_have_no_product():
    assert layer_by_layer((torch.nn.Identity(),)) is None
