"""Tensor parallelism: a model cut over two ranks trains like one that is not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from rl_core.errors import ModelError
from rl_core.ranks.rank_info import TrainTopology
from rl_core.train.sharding.tensor_parallel import check_tensor_parallel
from schemas.recipe import EmaLoraConfig, LoraConfig
from tests.train.jobs import Setup, largest_difference
from tests.train.parallel import (
    LORA,
    STEPS,
    copy_of,
    load,
    local_shapes,
    log_probs_of,
    reference_log_probs,
    save,
    train,
)
from tests.train.ranks import Ranks


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
def test_a_size_that_does_not_divide_is_refused_with_those_that_do(
    tp_size: int, intermediate_size: int, fitting: str
):
    with pytest.raises(ModelError, match=f"tp_size {tp_size} .*sizes that fit: {fitting}$"):
        check_tensor_parallel(llama(intermediate_size), tp_size)


def test_a_model_without_a_plan_is_refused_by_name():
    model = AutoModelForCausalLM.from_config(
        GPT2Config(vocab_size=20, n_embd=8, n_layer=1, n_head=2)
    )
    with pytest.raises(ModelError, match="no tensor-parallel plan for GPT2LMHeadModel"):
        check_tensor_parallel(model, 2)


CASES: dict[str, dict[str, Any]] = {
    "lora and its average": {"lora": LORA, "ema": EmaLoraConfig(decay=0.5)},
    "entropy, several updates, deferred sync": {
        "algorithm": {"name": "grpo", "entropy_coef": 0.01},
        "fsdp": {"defer_grad_sync": True, "root_wrap": False},
        "stack": {"num_epochs": 2},
    },
    "packed and recomputed": {
        "fsdp": {"activation_checkpointing": True},
        "stack": {"max_tokens_per_micro_batch": 24},
    },
    "qwen3": {"family": ("qwen3", {"num_key_value_heads": 2, "tie_word_embeddings": True})},
    "qwen3, deferred sync": {
        "family": ("qwen3", {"num_key_value_heads": 2, "tie_word_embeddings": False}),
        "fsdp": {"defer_grad_sync": True},
    },
    "a vocabulary that does not divide": {
        "family": (
            "llama",
            {"num_key_value_heads": 2, "tie_word_embeddings": True, "vocab_size": 101},
        )
    },
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_that_share_weights_train_like_one(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, case: str
) -> None:
    options = dict(CASES[case])
    family = options.pop("family", None)
    folder = copy_of(tiny_model_dir, tmp_path, family[0], **family[1]) if family else tiny_model_dir
    setup = Setup(str(folder), **options)
    weights, results = ranks.once(1, train, TrainTopology(), setup, STEPS)[0]
    got_weights, got_results = ranks.run(2, train, TrainTopology(tp_size=2), setup, STEPS)[0]
    assert largest_difference(weights, got_weights) < 1e-5
    assert [result.grad_norm for result in got_results] == pytest.approx(
        [r.grad_norm for r in results], abs=1e-5
    )
    assert [result.loss for result in got_results] == pytest.approx(
        [r.loss for r in results], abs=1e-6
    )


@pytest.mark.parametrize("lora", [None, LORA], ids=["copy", "adapters off"])
def test_the_reference_is_cut_too(
    ranks: Ranks, tiny_model_dir: Path, lora: LoraConfig | None
) -> None:
    setup = Setup(str(tiny_model_dir), lora=lora)
    whole = ranks.once(1, reference_log_probs, TrainTopology(), setup)[0]
    one, two = ranks.run(2, reference_log_probs, TrainTopology(tp_size=2), setup)
    assert torch.equal(one, two)
    torch.testing.assert_close(one, whole, atol=1e-6, rtol=0)


def test_a_rank_holds_half_of_each_matrix_and_of_the_adapters_beside_it(
    ranks: Ranks, tiny_model_dir: Path
) -> None:
    setup = Setup(str(tiny_model_dir), lora=LORA)
    whole = ranks.run(1, local_shapes, TrainTopology(), setup)[0]
    for held in ranks.run(2, local_shapes, TrainTopology(tp_size=2), setup):
        uncut = {name for name, shape in held.items() if shape == whole[name]}
        assert uncut == {
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
            "norm.weight",
            # Columns: B follows the layer and takes A's whole output. Rows: A follows it, its
            # output is summed up.
            *(f"self_attn.{name}_proj.lora_A.default.weight" for name in "qkv"),
            *(f"mlp.{name}_proj.lora_A.default.weight" for name in ("gate", "up")),
            "self_attn.o_proj.lora_B.default.weight",
            "mlp.down_proj.lora_B.default.weight",
        }
        for name in held.keys() - uncut:
            assert 2 * torch.Size(held[name]).numel() == torch.Size(whole[name]).numel(), name


@pytest.mark.parametrize(
    ("before", "after", "lora"),
    [(2, 2, LORA), (2, 1, None), (1, 2, LORA)],
    ids=["2-2-lora", "2-1-weights", "1-2-lora"],
)
def test_training_resumes_from_a_checkpoint_on_as_many_or_other_ranks(
    ranks: Ranks,
    tiny_model_dir: Path,
    tmp_path: Path,
    before: int,
    after: int,
    lora: LoraConfig | None,
) -> None:
    setup = Setup(str(tiny_model_dir), lora=lora)
    straight, _ = ranks.once(1, train, TrainTopology(), setup, STEPS)[0]
    folders = str(tmp_path / "checkpoint"), str(tmp_path / "exported")
    ranks.run(before, save, TrainTopology(tp_size=before), setup, *folders)
    resumed = ranks.run(after, load, TrainTopology(tp_size=after), setup, folders[0])[0]
    assert largest_difference(straight, resumed) < 1e-5


@pytest.mark.parametrize("lora", [None, LORA], ids=["weights", "lora"])
def test_the_exported_model_is_that_of_one_rank(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, lora: LoraConfig | None
) -> None:
    setup = Setup(str(tiny_model_dir), lora=lora)
    for tp_size in (1, 2):
        folders = str(tmp_path / f"checkpoint-{tp_size}"), str(tmp_path / f"exported-{tp_size}")
        ranks.run(tp_size, save, TrainTopology(tp_size=tp_size), setup, *folders)
    one, two = (log_probs_of(str(tmp_path / f"exported-{tp_size}")) for tp_size in (1, 2))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=0)
    assert not torch.allclose(one, log_probs_of(str(tiny_model_dir)), atol=1e-4)
