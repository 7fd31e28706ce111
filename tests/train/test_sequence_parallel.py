"""Sequence parallelism: two ranks that share each sequence train like one that has it all."""

from typing import Any

import pytest
from transformers import AutoModelForCausalLM, Lfm2Config, LlamaConfig, MambaConfig

from rl_core.errors import ModelError
from rl_core.train.sequence_parallel import check_sequence_parallel


def llama(attention: str = "sdpa") -> Any:
    config = LlamaConfig(
        vocab_size=20,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=12,
        num_key_value_heads=2,
        pad_token_id=0,
    )
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention)


@pytest.mark.parametrize(("sp_size", "tp_size"), [(1, 1), (3, 1), (4, 1), (12, 1), (6, 2)])
def test_sizes_that_divide_the_attention_heads_fit_even_beyond_the_key_value_heads(sp_size: int, tp_size: int):
    check_sequence_parallel(llama(), sp_size, tp_size)


@pytest.mark.parametrize(
    ("sp_size", "tp_size", "fitting"), [(5, 1, "1, 2, 3, 4, 6, 12"), (4, 2, "1, 2, 3, 6"), (24, 1, "1, 2, 3, 4, 6, 12")]
)
def test_a_size_that_does_not_divide_is_refused_with_those_that_do(sp_size: int, tp_size: int, fitting: str):
    with pytest.raises(ModelError, match=f"sp_size {sp_size} .*sizes that fit: {fitting}$"):
        check_sequence_parallel(llama(), sp_size, tp_size)


def test_attention_outside_the_interface_is_refused():
    with pytest.raises(ModelError, match=r"model\.attention 'eager'.*use sdpa"):
        check_sequence_parallel(llama("eager"), 2)


@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, state_size=4),
        Lfm2Config(
            vocab_size=20,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            layer_types=["conv", "full_attention"],
        ),
    ],
    ids=["mamba", "lfm2"],
)
def test_layers_that_carry_state_along_the_sequence_are_refused(config: Any):
    with pytest.raises(ModelError, match=r"placement\.sp_size 2: .*set placement\.sp_size to 1"):
        check_sequence_parallel(AutoModelForCausalLM.from_config(config), 2)
