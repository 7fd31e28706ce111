"""Tiny language models of several classes, by what adapters may touch in them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from schemas.recipe import LoraConfig


@dataclass(frozen=True)
class Case:
    """A model and the layers that get adapters; None leaves them to the family."""

    family: str
    """`model_type` of transformers."""
    targets: tuple[str, ...] | None = None
    tied: bool = True
    shape: dict[str, Any] = field(default_factory=dict)
    """Changes to a decoder of two layers."""
    adapted: bool = True
    """Whether adapters are trained, not the whole model."""

    @property
    def touches_tied(self) -> bool:
        """Whether an adapter stands beside a tied matrix."""
        return (
            self.tied
            and self.adapted
            and bool({"lm_head", "embed_tokens"} & set(self.targets or ()))
        )

    def lora(self, **settings: Any) -> LoraConfig | None:
        """Its adapters."""
        targets = None if self.targets is None else list(self.targets)
        return (
            LoraConfig(rank=4, alpha=8, target_modules=targets, **settings)
            if self.adapted
            else None
        )


EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 24}
CASES = {
    "tied head": Case("llama", ("q_proj", "lm_head")),
    "tied embedding": Case("qwen2", ("v_proj", "embed_tokens")),
    "both sides of a tie": Case("llama", ("embed_tokens", "lm_head")),
    "tied, elsewhere adapted": Case("qwen3"),
    "untied head": Case("qwen2", ("o_proj", "lm_head"), tied=False),
    "untied embedding": Case("llama", ("embed_tokens", "down_proj"), tied=False),
    "fused experts": Case("qwen3_moe", tied=False, shape={**EXPERTS, "num_experts": 4}),
    "fused experts and a tied head": Case(
        "qwen2_moe",
        ("q_proj", "gate_proj", "up_proj", "down_proj", "lm_head"),
        shape={**EXPERTS, "num_experts": 4, "shared_expert_intermediate_size": 24},
    ),
    "experts of another layout": Case(
        "mixtral", tied=False, shape={"num_local_experts": 4, "num_experts_per_tok": 2}
    ),
    "whole, tied": Case("qwen3", adapted=False),
    "whole, experts": Case(
        "qwen3_moe", tied=False, shape={**EXPERTS, "num_experts": 4}, adapted=False
    ),
}


def save(case: Case, tokenizer_dir: Path, folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """The model with random weights, in a format, beside a tokenizer of another one's."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    shape = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "tie_word_embeddings": case.tied,
        # Wide enough that a wrong layer is felt.
        "initializer_range": 0.1,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(case.family, **shape | case.shape)
        )
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
