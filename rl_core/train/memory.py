"""An estimate of a worker's memory, from the model's config alone."""

from typing import Any

from schemas.recipe import DType, FSDPMode, Recipe

LORA_LINEARS = 7
"""Linear layers of a block that get an adapter: four of attention, three of the gated MLP."""


def num_parameters(shape: dict[str, Any]) -> int:
    """Parameters of a decoder-only model with gated MLPs, from its `config.json`; others come out approximately."""
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    heads = shape["num_attention_heads"]
    head_dim = shape.get("head_dim") or hidden // heads
    kv = (shape.get("num_key_value_heads") or heads) * head_dim
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv
    mlp = 3 * hidden * shape["intermediate_size"]
    embeddings = shape["vocab_size"] * hidden * (1 if shape.get("tie_word_embeddings") else 2)
    return layers * (attention + mlp + 2 * hidden) + embeddings + hidden


def estimate_memory(recipe: Recipe, shape: dict[str, Any]) -> dict[str, float]:
    """Bytes of one worker, by purpose. Activations assume the longest allowed rows."""
    ranks, total = recipe.placement.num_devices, num_parameters(shape)
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    width = 2 if recipe.fsdp.param_dtype is DType.BFLOAT16 else 4
    trained = LORA_LINEARS * layers * 2 * hidden * recipe.lora.rank if recipe.lora else total
    length = recipe.data.max_prompt_length + recipe.rollout.max_new_tokens
    rows = recipe.placement.micro_batch_size
    kept_blocks = 1 if recipe.fsdp.activation_checkpointing else layers
    kv_heads = shape.get("num_key_value_heads") or shape["num_attention_heads"]
    head_dim = shape.get("head_dim") or hidden // shape["num_attention_heads"]
    decoded = min(
        recipe.rollout.max_batch_size, recipe.training.prompts_per_step * recipe.rollout.samples_per_prompt // ranks
    )
    gathered = total * width if recipe.fsdp.fsdp_mode is FSDPMode.GRAD_OP else total * width / layers
    return {
        "master weights": total * 4 / ranks,
        "gathered weights (rollout)": total * width,
        "gathered weights (training)": gathered,
        "gradients and AdamW": trained * 12 / ranks,
        # About 20 hidden-sized tensors stay alive per block for the backward pass.
        "activations": rows * length * hidden * width * 20 * kept_blocks,
        "logits": min(rows * recipe.rollout.max_new_tokens, 1024) * shape["vocab_size"] * 4 * 3,
        "KV cache": decoded * length * 2 * layers * kv_heads * head_dim * width,
    }
