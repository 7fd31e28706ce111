"""Families that are built otherwise are trained where that is right, and refused with a sentence
where it is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import nn

from rl_core.errors import ModelError
from rl_core.models.adapters.lora import inject_lora
from rl_core.models.causal_lm import CausalLMPolicy, blocks, load_policy
from rl_core.models.checks.comparison import LENGTHS, token_rows
from rl_core.models.layer_types import sizes_of_layers
from schemas.recipe import LoraConfig, ModelConfig

BERT: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "is_decoder": True,
    "initializer_range": 0.25,
}
WORDS = {str(word): word for word in range(97)}
LLAMA = {
    key: value for key, value in BERT.items() if key not in ("is_decoder", "initializer_range")
}
MAMBA: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "state_size": 4,
}


def built(config: Any) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config)


def adapted(policy: CausalLMPolicy) -> set[str]:
    """The layers that got adapters."""
    found = {
        name.split(".lora_A")[0].rpartition(".")[2]
        for name, _ in policy.named_parameters()
        if "lora_A" in name
    }
    assert found
    return found


def test_positions_that_are_not_counted_from_zero_are_refused(tmp_path: Path) -> None:
    built(transformers.RobertaConfig(**BERT, pad_token_id=1)).save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"RobertaForCausalLM cannot be trained: .* counted from 0, differ from"
    ):
        load_policy(str(tmp_path), ModelConfig(path=str(tmp_path)))


def test_a_block_that_shares_weights_with_the_head_is_not_wrapped_apart() -> None:
    policy = CausalLMPolicy(built(transformers.BertConfig(**BERT)))
    assert {"BertEmbeddings", "BertLayer"} == set(policy.block_classes)
    assert [type(block).__name__ for block in blocks(policy)] == ["BertLayer"] * 2
    policy.language_model.set_output_embeddings(nn.Linear(32, 97))
    assert [type(block).__name__ for block in blocks(policy)] == [
        "BertEmbeddings",
        *["BertLayer"] * 2,
    ]


def test_layers_that_kernels_read_without_calling_them_get_no_adapter() -> None:
    policy = CausalLMPolicy(built(transformers.MambaConfig(**MAMBA)))
    inject_lora(policy, LoraConfig(rank=4), seed=0)
    assert adapted(policy) == {"in_proj", "x_proj", "dt_proj"}


def test_such_a_layer_is_refused_where_a_recipe_names_it() -> None:
    policy = CausalLMPolicy(built(transformers.MambaConfig(**MAMBA)))
    with pytest.raises(
        ModelError, match=r"lora\.target_modules: out_proj of this model can carry no adapter"
    ):
        inject_lora(policy, LoraConfig(rank=4, target_modules=["in_proj", "out_proj"]), seed=0)


def test_the_same_name_in_another_family_gets_its_adapter() -> None:
    layers = ["conv", "full_attention"]
    shape = {key: value for key, value in BERT.items() if key != "is_decoder"} | {
        "num_key_value_heads": 2
    }
    policy = CausalLMPolicy(built(transformers.Lfm2Config(**shape, layer_types=layers)))
    inject_lora(policy, LoraConfig(rank=4), seed=0)
    assert "out_proj" in adapted(policy)


def test_a_model_without_plain_linear_layers_says_so() -> None:
    shape = {
        key: BERT[key]
        for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
    }
    policy = CausalLMPolicy(built(transformers.FalconConfig(**shape)))
    with pytest.raises(ModelError, match="FalconForCausalLM has no plain linear layer"):
        inject_lora(policy, LoraConfig(rank=4), seed=0)


def test_a_layer_named_by_a_number_is_not_taken_for_every_block_of_that_number() -> None:
    policy = CausalLMPolicy(built(transformers.LlamaConfig(**LLAMA)))
    policy.model.model.extra = nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32))
    inject_lora(policy, LoraConfig(rank=4), seed=0)
    assert adapted(policy) == {
        *(f"{name}_proj" for name in "qkvo"),
        "gate_proj",
        "up_proj",
        "down_proj",
        "0",
        "2",
    }
    assert "lm_head" not in adapted(policy)


def test_a_length_that_stands_for_no_limit_is_none() -> None:
    config = transformers.XLNetConfig(vocab_size=97)
    assert config.max_position_embeddings == -1
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(WordLevel(WORDS, "0"))
    )
    rows = token_rows(tokenizer, config)
    assert [len(row.ids_L) for row in rows] == [sum(lengths) for lengths in LENGTHS]


def test_sizes_that_differ_from_layer_to_layer_are_all_looked_at() -> None:
    config = transformers.LlamaConfig(**LLAMA, per_layer_config={1: {"intermediate_size": 64}})
    assert sizes_of_layers(config, "num_attention_heads") == {4}
    assert sizes_of_layers(config, "intermediate_size") == {48, 64}
    assert sizes_of_layers(config, "moe_intermediate_size") == set()
