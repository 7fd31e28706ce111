"""Tensor parallelism: a model cut over two ranks trains like one that is not."""

from typing import Any

import pytest
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from rl_core.errors import ModelError
from rl_core.train.tensor_parallel import check_tensor_parallel


def llama(intermediate_size: int = 36) -> Any:
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=24,
        intermediate_size=intermediate_size,
        num_hidden_layers=1,
        num_attention_heads=12,
        num_key_value_heads=6,
        pad_token_id=0,
    )
    return AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("tp_size", [1, 2, 3, 6])
def test_sizes_that_divide_heads_and_mlp_fit(tp_size: int):
    check_tensor_parallel(llama(), tp_size)


@pytest.mark.parametrize(
    ("tp_size", "intermediate_size", "fitting"),
    [(4, 36, "1, 2, 3, 6"), (12, 36, "1, 2, 3, 6"), (2, 33, "1, 3")],
)
def test_a_size_that_does_not_divide_is_refused_with_those_that_do(tp_size: int, intermediate_size: int, fitting: str):
    with pytest.raises(ModelError, match=f"tp_size {tp_size} .*sizes that fit: {fitting}$"):
        check_tensor_parallel(llama(intermediate_size), tp_size)


def test_a_model_without_a_plan_is_refused_by_name():
    model = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2))
    with pytest.raises(ModelError, match="no tensor-parallel plan for GPT2LMHeadModel"):
        check_tensor_parallel(model, 2)
