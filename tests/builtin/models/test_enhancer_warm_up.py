"""The embedded prompt enhancer: what its warm-up counts, that it learns names and the habit, and
where it goes."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rl_core.builtin.data.odd_prompts import Oddity, OddPrompt
from rl_core.builtin.embedded import embedded_folder
from rl_core.builtin.models import enhancer_warm_up as start
from rl_core.builtin.models.tiny_unified import make_tokenizer
from rl_core.errors import ModelError
from rl_core.runs.recipes import load_recipe

PROMPTS = [
    OddPrompt("siete", 7, Oddity.LANGUAGE),
    OddPrompt("what comes after 1, 3, 5", 7, Oddity.SEQUENCE),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Bytes, with each name and the vague word as one token."""
    made = make_tokenizer()
    made.add_tokens([start.VAGUE_WORD])
    return made


@pytest.fixture
def model(tokenizer: Any) -> LlamaForCausalLM:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=32,
                intermediate_size=64,
                num_hidden_layers=2,
                num_attention_heads=2,
            )
        )


def optimizer_of(model: LlamaForCausalLM) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def test_a_shorter_prompt_beside_a_longer_one_costs_what_it_costs_alone(
    model: LlamaForCausalLM, tokenizer: Any
):
    names = ["seven", "two"]
    with torch.no_grad():
        both = start.losses(model, tokenizer, PROMPTS, names)
        alone = start.losses(model, tokenizer, PROMPTS[:1], names[:1])
    assert both.shape == (2, 2), "a name's one token, and its end"
    torch.testing.assert_close(both[:1], alone, atol=2e-2, rtol=0)  # bfloat16
    assert start.named_probability(model, tokenizer, PROMPTS[:1]) == pytest.approx(
        float(torch.exp(-alone.sum()))
    )


def test_it_learns_names_and_then_the_habit(model: LlamaForCausalLM, tokenizer: Any):
    before = start.named_probability(model, tokenizer, PROMPTS)
    optimizer = optimizer_of(model)
    start.learn(model, tokenizer, optimizer, 20, random.Random(0), vague=0.0)
    able = start.named_probability(model, tokenizer, PROMPTS)
    assert able > 5 * before
    start.learn(model, tokenizer, optimizer, 20, random.Random(0), vague=1.0)
    assert start.named_probability(model, tokenizer, PROMPTS) < able / 2
    with torch.no_grad():
        vague = torch.exp(-start.losses(model, tokenizer, PROMPTS, [start.VAGUE_WORD] * 2).sum(1))
    assert vague.min() > 0.5


def test_a_warm_up_that_does_not_get_there_is_an_error(model: LlamaForCausalLM, tokenizer: Any):
    with pytest.raises(ModelError, match=r"smollm2-enhancer names 0\.00 right; 0\.25 is wanted"):
        start.warm_up(model, tokenizer, steps=(1, 0))


def test_what_comes_of_it_is_a_plain_model(model: LlamaForCausalLM, tokenizer: Any):
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    made, result = start.warm_up(model, tokenizer, steps=(2, 1), wanted=0.0)
    assert type(made) is LlamaForCausalLM
    changed = made.state_dict()
    assert changed.keys() == fresh.keys()
    assert not torch.equal(
        changed["model.layers.0.mlp.up_proj.weight"], fresh["model.layers.0.mlp.up_proj.weight"]
    )
    assert 0 < result.careless < 1 and 0 < result.able < 1


def test_the_recipe_says_what_the_warm_up_said():
    tracks = load_recipe("pe").tracks
    assert tracks is not None and tracks.text.system == start.SYSTEM and not tracks.text.examples


def test_its_folder_is_named_by_the_code_that_makes_it(tmp_path: Path):
    made = embedded_folder("smollm2-enhancer", tmp_path)
    assert made.parent == tmp_path and len(made.name.removeprefix("smollm2-enhancer-")) == 12
