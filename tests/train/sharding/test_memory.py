"""The memory estimate follows the options, and equals what real ranks hold."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

from rl_core.models.decoding import restriction
from rl_core.ranks.rank_info import RankInfo
from rl_core.runs.recipes import parse_recipe
from rl_core.train.sharding import memory
from rl_core.train.sharding.memory import estimate_memory, num_parameters, unknown_sizes
from rl_core.train.weights.ema import local_part
from schemas.recipe import EmaFullConfig, EmaLoraConfig, LoraConfig, Recipe
from tests.train.jobs import WITH_KL, Setup, batch, make_both, shard_of
from tests.train.ranks import Ranks

SHAPE = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
}
VALUES: dict[str, Any] = {
    "name": "x",
    "model": {"path": "some/model"},
    "data": {"train": ["t"], "eval": ["e"]},
    "placement": {"num_devices": 2},
}


def recipe(**changes: Any) -> Recipe:
    return parse_recipe({**VALUES, **changes})


def estimate(**changes: Any) -> dict[str, float]:
    return estimate_memory(recipe(**changes), SHAPE)


def measured(rank_info: RankInfo, setup: Setup) -> dict[str, int]:
    """Bytes that one rank holds after a step, with gradients still there."""
    backend, stack = make_both(rank_info, setup)
    stack.train(shard_of(rank_info, batch(0)))

    def size(tensors: Any) -> int:
        return sum(local_part(tensor).numel() * tensor.element_size() for tensor in tensors)

    averaged = (
        {id(value) for value in backend.ema.shadow.values()} if backend.ema is not None else set()
    )
    moments = [
        state[key]
        for state in backend.optimizer.state.values()
        for key in ("exp_avg", "exp_avg_sq")
    ]
    held = {
        "stored weights": size(
            value for value in backend.policy.parameters() if id(value) not in averaged
        ),
        # A gradient has the size and format of its weight.
        "gradients and AdamW": size(moments) + size(backend.trainable.values()),
    }
    if backend.reference is not None:
        held["reference"] = size(backend.reference.parameters())
    if backend.mirror is not None:
        held["moving average"] = size(backend.mirror.parameters())
    elif backend.ema is not None:
        held["moving average"] = size(backend.ema.shadow.values())
    return held


@pytest.mark.parametrize(
    ("setup", "changes"),
    [
        ({}, {}),
        ({"fsdp": {"root_wrap": False}}, {"fsdp": {"root_wrap": False}}),
        ({"fsdp": {"master_dtype": "bfloat16"}}, {"fsdp": {"master_dtype": "bfloat16"}}),
        ({"ema": EmaFullConfig(evaluate=False)}, {"ema_full": {"evaluate": False}}),
        (
            {"ema": EmaFullConfig(evaluate=False, mirror=True)},
            {"ema_full": {"evaluate": False, "mirror": True}},
        ),
        (
            {"algorithm": WITH_KL, "fsdp": {"param_dtype": "bfloat16"}},
            {"algorithm": WITH_KL, "fsdp": {"param_dtype": "bfloat16"}},
        ),
        (
            {"lora": LoraConfig(rank=8), "ema": EmaLoraConfig(evaluate=False)},
            {"lora": {"rank": 8}, "ema_lora": {"evaluate": False}},
        ),
        *[
            (
                {
                    "lora": LoraConfig(rank=8),
                    "fsdp": {"param_dtype": "bfloat16", "root_wrap": root_wrap},
                },
                {"lora": {"rank": 8}, "fsdp": {"param_dtype": "bfloat16", "root_wrap": root_wrap}},
            )
            for root_wrap in (True, False)
        ],
    ],
    ids=[
        "plain",
        "root_wrap",
        "master_dtype",
        "average",
        "mirror",
        "reference",
        "adapters",
        "narrow",
        "narrow blocks",
    ],
)
def test_what_ranks_hold_is_what_was_estimated(
    ranks: Ranks, tiny_model_dir: Path, setup: dict[str, Any], changes: dict[str, Any]
) -> None:
    shape = json.loads((tiny_model_dir / "config.json").read_text())
    changes = {**changes, "fsdp": {"param_dtype": "float32", **changes.get("fsdp", {})}}
    held = ranks.run(2, measured, Setup(str(tiny_model_dir), **setup))[0]
    expected = estimate_memory(recipe(**changes), shape)
    # Adapters are estimated from the hidden size alone, and sharding rounds up to whole rows.
    tolerance = 0.35 if "lora" in setup else 0.03
    assert held == pytest.approx({name: expected[name] for name in held}, rel=tolerance)


def test_options_move_their_part() -> None:
    plain = estimate()
    total = num_parameters(SHAPE)
    for fsdp in ({"fsdp_mode": "grad_op"}, {"reshard_after_forward": False}):
        assert estimate(fsdp=fsdp)["gathered weights (training)"] == total * 2
    ahead = estimate(fsdp={"forward_prefetch": 2})["gathered weights (training)"]
    assert plain["gathered weights (training)"] < ahead < total * 2
    deferred = estimate(fsdp={"defer_grad_sync": True})
    assert deferred["gradients before they are reduced"] == total * 4
    assert (
        estimate(fsdp={"activation_checkpointing": True})["activations"] < plain["activations"] / 4
    )
    packed = {**VALUES["placement"], "max_tokens_per_micro_batch": 768}
    eight = {**VALUES["placement"], "micro_batch_size": 8}
    # The default recipe's longest row is 512 + 256 tokens.
    assert estimate(placement=packed)["activations"] == estimate(placement=eight)["activations"] / 8


def test_offloaded_weights_are_not_on_the_device() -> None:
    placement = {"num_devices": 2, "device": "cuda"}
    on, off = (
        estimate(placement=placement, fsdp={"cpu_offload": offload}) for offload in (False, True)
    )
    assert on["stored weights"] > 0
    assert off["stored weights"] == off["gradients and AdamW"] == 0
    assert on["gathered weights (training)"] == off["gathered weights (training)"]
    # On a CPU it is the same memory either way.
    assert estimate(fsdp={"cpu_offload": True}) == estimate()


def test_the_estimate_knows_the_chunk_of_vocabulary_rows() -> None:
    assert memory.CHUNK_TOKENS == restriction.CHUNK_TOKENS


@pytest.mark.parametrize(
    ("model_type", "tolerance"),
    [
        *[
            (kind, 0.03)
            for kind in (
                "gpt2",
                "gpt_neox",
                "opt",
                "mpt",
                "bloom",
                "llama",
                "qwen3",
                "gpt_bigcode",
                "olmo2",
            )
        ],
        *[
            (kind, 0.03)
            for kind in ("falcon", "phi", "starcoder2", "gptj", "stablelm", "gpt_bigcode", "olmo2")
        ],
        *[
            (kind, 0.03)
            for kind in (
                "mixtral",
                "qwen3_moe",
                "qwen2_moe",
                "olmoe",
                "gpt_oss",
                "glm4_moe",
                "granitemoe",
            )
        ],
        ("deepseek_v3", 0.1),
        ("jamba", 0.15),
        ("gemma3", 0.15),
    ],
)
def test_parameters_are_counted_whatever_a_family_calls_its_sizes(
    model_type: str, tolerance: float
) -> None:
    """Against the model itself, without memory for it."""
    config = AutoConfig.for_model(model_type)
    with torch.device("meta"):
        auto = (
            AutoModelForImageTextToText if hasattr(config, "text_config") else AutoModelForCausalLM
        )
        model = auto.from_config(config)
    language = getattr(model.base_model, "language_model", model)
    assert unknown_sizes(config.to_dict()) == []
    counted = sum(one.numel() for one in language.parameters())
    assert num_parameters(config.to_dict()) == pytest.approx(counted, rel=tolerance)


def test_what_an_estimate_lacks_is_named() -> None:
    assert unknown_sizes({"hidden_size": 4, "num_hidden_layers": 2, "vocab_size": 8}) == [
        "num_attention_heads"
    ]
    assert unknown_sizes({"text_config": {}, "vocab_size": 8})[0] == "hidden_size"


def test_experts_on_other_ranks_are_gathered_to_sample_alone() -> None:
    shape = SHAPE | {"num_experts": 8, "moe_intermediate_size": 256}
    whole = estimate_memory(recipe(), shape)
    dealt = estimate_memory(recipe(placement={"num_devices": 2, "ep_size": 2}), shape)
    differing = {name for name in whole if whole[name] != dealt[name]}
    assert differing == {"gathered weights (training)"}
    # Two blocks are in flight, of eight experts with three matrices, in bfloat16.
    half = 2 * 8 * 3 * 512 * 256 * 2 / 2
    name = "gathered weights (training)"
    assert whole[name] - dealt[name] == half
