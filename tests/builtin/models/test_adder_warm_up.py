"""The embedded teacher of sums: what its warm-up counts, what it is asked, and where it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from rl_core.builtin.embedded import embedded_folder
from rl_core.builtin.models import adder_warm_up as start
from rl_core.builtin.models.tiny_unified import make_tokenizer
from rl_core.errors import ModelError
from rl_core.runs.recipes import load_recipe


def lesson(question: str, answer: str) -> start.Lesson:
    return start.Lesson([{"role": "user", "content": question}], answer)


LESSONS = [lesson("3 + 4", "7"), lesson("what is 9 + 8", "17")]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


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


def test_a_shorter_row_beside_a_longer_one_costs_what_it_costs_alone(
    model: LlamaForCausalLM, tokenizer: Any
) -> None:
    with torch.no_grad():
        both_B = start.losses(model, tokenizer, LESSONS)
        alone_B = start.losses(model, tokenizer, LESSONS[:1])
    torch.testing.assert_close(both_B[:1], alone_B, atol=5e-2, rtol=0)  # bfloat16


def test_a_warm_up_that_does_not_get_there_is_an_error(
    model: LlamaForCausalLM, tokenizer: Any
) -> None:
    with pytest.raises(ModelError, match=r"smollm2-adder gives right answers with 0\.00; 0\.8 is"):
        start.warm_up(model, tokenizer, LESSONS, LESSONS, steps=1)


def test_it_learns_its_lessons(model: LlamaForCausalLM, tokenizer: Any) -> None:
    with torch.no_grad():
        before = start.losses(model, tokenizer, LESSONS).mean()
    made, able = start.warm_up(model, tokenizer, LESSONS, LESSONS, steps=8, wanted=0.0)
    assert type(made) is LlamaForCausalLM
    with torch.no_grad():
        assert start.losses(made, tokenizer, LESSONS).mean() < before
    assert 0 < able < 1


def test_it_never_saw_what_the_recipe_holds_out() -> None:
    asked, held_out = (
        {one.messages[-1]["content"]: one.answer for one in start.lessons(split)}
        for split in ("train", "eval")
    )
    assert len(asked) == start.NUM_TRAIN and len(held_out) == start.NUM_HELD_OUT
    assert not asked.keys() & held_out.keys()
    recipe = load_recipe("distill")
    assert recipe.algorithm["teacher"] == "embedded:smollm2-adder"
    given = [recipe.data.train, recipe.data.eval]
    specs = [start.lessons_spec("train"), start.lessons_spec("eval")]
    assert given == [[spec.model_dump(exclude_unset=True)] for spec in specs]


def test_its_folder_is_named_by_the_code_that_makes_it(tmp_path: Path) -> None:
    made = embedded_folder("smollm2-adder", tmp_path)
    assert made.parent == tmp_path and len(made.name.removeprefix("smollm2-adder-")) == 12
