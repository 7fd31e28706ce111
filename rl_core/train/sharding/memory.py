"""Estimate of a worker's memory, from the model's config alone."""

from collections.abc import Mapping
from typing import Any

from rl_core.algorithms import algorithms
from rl_core.models.checks.shape import named
from schemas.recipe import EmaFullConfig, Recipe
from schemas.sections.optimizer import OptimizerKind
from schemas.sections.placement import ROWS_OF_A_PASS, TOKENS_IN_TILES, TOKENS_ON_GPU
from schemas.sections.policy import FSDPMode
from schemas.sections.section import DType

WIDTHS = {DType.BFLOAT16: 2, DType.FLOAT32: 4}
"""Bytes of a number in each format."""
CHUNK_TOKENS = 1024
"""Number of positions whose vocabulary logits exist at once."""
LORA_LINEARS = 7
"""Linear layers of a block with an adapter: four of attention, three of the gated MLP."""
ROLLOUT_WEIGHTS, KV_CACHE = "gathered weights (rollout)", "KV cache"
"""Entries of the estimate for sampling."""


UNGATED = ("n_embd", "n_embed", "ffn_dim", "expansion_ratio", "n_head")
"""Config keys of families whose MLPs have two matrices; others have gated ones with three."""
UNGATED_TYPES = (
    "gpt_neox",
    "gpt_neox_japanese",
    "falcon",
    "phi",
    "starcoder2",
    "persimmon",
    "nemotron",
)
"""Further families whose MLPs have two matrices."""
PERIODS = ("expert_layer_period", "decoder_sparse_step", "interleave_moe_layer_step")
"""Config keys for the interval of blocks with experts."""
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def unknown_sizes(config: Mapping[str, Any]) -> list[str]:
    """Return the values that an estimate needs and a `config.json` does not state, such as
    attention heads of recurrent models."""
    shape = named(config)
    return [name for name in NEEDED if not isinstance(shape.get(name), int)]


def num_parameters(config: Mapping[str, Any]) -> int:
    """Return the parameters of a decoder-only language model, from its `config.json`; approximate
    for unusual ones."""
    shape = named(config)
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    heads = shape["num_attention_heads"]
    head_dim = shape.get("head_dim") or hidden // heads
    shares_one = bool(shape.get("multi_query")) and not shape.get("new_decoder_architecture")
    kv = (1 if shares_one else shape.get("num_key_value_heads") or heads) * head_dim
    attention = 2 * hidden * heads * head_dim + 2 * hidden * kv
    # GPT-2's config.json says nothing of tying, which is its default.
    tied = shape.get("tie_word_embeddings", "n_embd" in shape)
    embeddings = shape["vocab_size"] * hidden * (1 if tied else 2)
    return layers * (attention + 2 * hidden) + _mlps(shape) + embeddings + hidden


def _mlps(shape: Mapping[str, Any]) -> int:
    """Return the MLP parameters of all blocks, experts and their router included."""
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    matrices, width = _num_matrices(shape), shape.get("intermediate_size") or 4 * hidden
    num_sparse = _num_sparse(shape)
    dense = (layers - num_sparse) * matrices * hidden * width
    if not num_sparse:
        return dense
    shared = shape.get("shared_expert_intermediate_size") or (
        shape.get("n_shared_experts") or 0
    ) * _expert_width(shape)
    beside = matrices * hidden * shared + shape["num_experts"] * hidden
    return dense + _experts(shape) + num_sparse * beside


def _experts(shape: Mapping[str, Any]) -> int:
    """Return the parameters of the experts of all blocks, without shared ones and the router."""
    each = _num_matrices(shape) * shape["hidden_size"] * _expert_width(shape)
    return _num_sparse(shape) * (shape.get("num_experts") or 0) * each


def _expert_width(shape: Mapping[str, Any]) -> int:
    width = shape.get("intermediate_size") or 4 * shape["hidden_size"]
    return shape.get("moe_intermediate_size") or width


def _num_matrices(shape: Mapping[str, Any]) -> int:
    """Return the number of matrices of an MLP."""
    is_gated = shape.get("model_type") not in UNGATED_TYPES and not any(
        name in shape for name in UNGATED
    )
    return 3 if is_gated else 2


def _num_sparse(shape: Mapping[str, Any]) -> int:
    """Return the number of blocks with experts."""
    layers = shape["num_hidden_layers"]
    if (shape.get("num_experts") or 0) < 2:
        return 0
    num_dense = min(
        layers, shape.get("first_k_dense_replace") or len(shape.get("mlp_only_layers") or ())
    )
    return (layers - num_dense) // next((shape[name] for name in PERIODS if shape.get(name)), 1)


def estimate_memory(recipe: Recipe, config: Mapping[str, Any]) -> dict[str, float]:
    """Return the bytes of one training worker's device, by purpose. Activations assume passes of
    the longest allowed rows.

    Args: config: the model's `config.json`, without `unknown_sizes`.
    """
    shape = named(config)
    weights = _weights(recipe, shape)
    if recipe.fsdp.cpu_offload and recipe.placement.device == "cuda":
        weights = {purpose: 0.0 for purpose in weights}
    parts = weights | _gathered(recipe, shape) | _activations(recipe, shape)
    if recipe.rollout.engine.owns_model:
        # A worker that samples holds these, and nothing else.
        parts = {
            purpose: size
            for purpose, size in parts.items()
            if purpose not in (ROLLOUT_WEIGHTS, KV_CACHE)
        }
    return {purpose: size for purpose, size in parts.items() if size or purpose in weights}


def _weights(recipe: Recipe, shape: dict[str, Any]) -> dict[str, float]:
    """Return the memory that is sharded over the ranks and stays between steps."""
    total, trained = num_parameters(shape), _num_trained(recipe, shape)
    adapters = trained if recipe.lora else 0
    master, computed = WIDTHS[recipe.fsdp.master_dtype], WIDTHS[recipe.fsdp.param_dtype]
    held = _share(recipe, shape)
    parts = {
        "stored weights": _stored(recipe, shape)
        + adapters / recipe.placement.ranks_of_a_copy * master,
        "gradients and AdamW": trained * _share(recipe, shape, trained=True) * _per_weight(recipe),
    }
    if recipe.lora is None and _needs_reference(recipe):
        parts["reference"] = total * held * computed
    if recipe.ema is not None:
        mirrored = isinstance(recipe.ema, EmaFullConfig) and recipe.ema.mirror
        # The weights step aside while the average is evaluated.
        kept = trained * _share(recipe, shape, trained=True) * master if recipe.ema.evaluate else 0
        averaged = total * held if mirrored else trained * _share(recipe, shape, trained=True)
        parts["moving average"] = averaged * 4 + kept
    return parts


def _per_weight(recipe: Recipe) -> int:
    """Return the bytes of a trained weight's gradient and two running means; Muon needs less."""
    master = WIDTHS[recipe.fsdp.master_dtype]
    has_bytes = recipe.optimizer.name is OptimizerKind.ADAMW_8BIT
    return master + 2 * (1 if has_bytes else master)


def _stored(recipe: Recipe, shape: dict[str, Any]) -> float:
    """Return the model's own weights on one rank; under adapters they are never updated, and stored
    in the compute format."""
    ranks, tp_size = recipe.placement.ranks_of_a_copy, recipe.placement.tp_size
    master, computed = WIDTHS[recipe.fsdp.master_dtype], WIDTHS[recipe.fsdp.param_dtype]
    in_blocks = computed if recipe.lora else master
    outside = _num_root_parameters(shape)
    blocks = (num_parameters(shape) - outside) / ranks * in_blocks
    return blocks + (
        outside / ranks * in_blocks if recipe.fsdp.root_wrap else outside / tp_size * master
    )


def _gathered(recipe: Recipe, shape: dict[str, Any]) -> dict[str, float]:
    """Return the weights and gradients that are temporarily whole on a rank."""
    config, layers = recipe.fsdp, shape["num_hidden_layers"]
    width, tp_size = WIDTHS[config.param_dtype], recipe.placement.tp_size
    whole = num_parameters(shape) * width / tp_size
    # FSDP2 gathers the next block while one runs.
    in_flight = min(layers, 2 + config.forward_prefetch) if _reshards(recipe) else layers
    root = _num_root_parameters(shape) * width / tp_size
    # Only to sample does a rank gather those of the ranks that it shares experts with.
    elsewhere = _experts(shape) * (1 - 1 / recipe.placement.ep_size)
    blocks = whole - root - elsewhere * width
    parts = {
        ROLLOUT_WEIGHTS: whole,
        "gathered weights (training)": blocks * in_flight / layers + root,
    }
    if config.defer_grad_sync:
        trained = _num_trained(recipe, shape) - (0 if recipe.lora else elsewhere)
        parts["gradients before they are reduced"] = trained * WIDTHS[config.reduce_dtype] / tp_size
    return parts


def _activations(recipe: Recipe, shape: dict[str, Any]) -> dict[str, float]:
    """Return the activations of a training pass and of a decoding batch."""
    placement, rollout = recipe.placement, recipe.rollout
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    width = WIDTHS[recipe.fsdp.param_dtype]
    length = recipe.data.max_prompt_length + rollout.max_new_tokens
    tokens = placement.max_tokens_per_micro_batch or _tokens_of_a_pass(recipe, length)
    scored = tokens * rollout.max_new_tokens / length
    kept_blocks = 1 if recipe.fsdp.activation_checkpointing else layers
    kv_heads = shape.get("num_key_value_heads") or shape["num_attention_heads"]
    head_dim = shape.get("head_dim") or hidden // shape["num_attention_heads"]
    rows = (
        (recipe.training.prompts_per_step + rollout.extra_prompts)
        * rollout.samples_per_prompt
        * placement.tp_size
        // placement.num_devices
    )
    decoded = min(rollout.max_batch_size, rows)
    return {
        # About 14 hidden-sized tensors stay alive per block for the backward pass; of the other
        # blocks, their input.
        "activations": tokens
        * hidden
        * width
        * (14 * kept_blocks + layers - kept_blocks)
        / placement.sp_size,
        "logits": min(scored / placement.sp_size, CHUNK_TOKENS) * shape["vocab_size"] * 4 * 3,
        KV_CACHE: decoded * length * 2 * layers * kv_heads * head_dim * width / placement.tp_size,
    }


def _tokens_of_a_pass(recipe: Recipe, length: int) -> int:
    """Return the maximum without packing; the CPU's speed in bfloat16 is only known where the
    worker runs."""
    placement = recipe.placement
    if placement.micro_batch_size:
        return placement.micro_batch_size * length
    if placement.device == "cuda":
        return max(ROWS_OF_A_PASS * length, TOKENS_ON_GPU)
    may_have_tiles = recipe.fsdp.param_dtype is DType.BFLOAT16
    return max(ROWS_OF_A_PASS * length, TOKENS_IN_TILES if may_have_tiles else 0)


def _num_trained(recipe: Recipe, shape: dict[str, Any]) -> int:
    if recipe.lora is None:
        return num_parameters(shape)
    return LORA_LINEARS * shape["num_hidden_layers"] * 2 * shape["hidden_size"] * recipe.lora.rank


def _num_root_parameters(shape: dict[str, Any]) -> int:
    """Return the number of parameters outside the blocks."""
    return num_parameters({**shape, "num_hidden_layers": 0})


def _share(recipe: Recipe, shape: dict[str, Any], *, trained: bool = False) -> float:
    """Return the share of the weights (or of the trained ones) on one rank; adapters are all in
    blocks."""
    ranks = recipe.placement.ranks_of_a_copy
    if recipe.fsdp.root_wrap or (trained and recipe.lora is not None):
        return 1 / ranks
    outside = _num_root_parameters(shape) / num_parameters(shape)
    return (1 - outside) / ranks + outside / recipe.placement.tp_size


def _reshards(recipe: Recipe) -> bool:
    if recipe.fsdp.reshard_after_forward is not None:
        return recipe.fsdp.reshard_after_forward
    return recipe.fsdp.fsdp_mode is FSDPMode.FULL and recipe.placement.ranks_of_a_copy > 1


def _needs_reference(recipe: Recipe) -> bool:
    algorithm_cls, config = algorithms.resolve(recipe.algorithm, "algorithm")
    return algorithm_cls(config).needs_reference
