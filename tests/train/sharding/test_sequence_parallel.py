"""Sequence parallelism: two ranks that share each sequence train like one that has it all."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Lfm2Config, LlamaConfig, MambaConfig

from rl_core.errors import ModelError
from rl_core.ranks.rank_info import RankInfo, TrainTopology
from rl_core.train.sharding.sequence_parallel import check_sequence_parallel
from schemas.recipe import LoraConfig
from tests.train.jobs import Setup, batch, largest_difference, log_probs
from tests.train.parallel import LORA, STEPS, build, copy_of, reference_log_probs, train
from tests.train.ranks import Ranks


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
def test_sizes_that_divide_the_attention_heads_fit_even_beyond_the_key_value_heads(
    sp_size: int, tp_size: int
):
    check_sequence_parallel(llama(), sp_size, tp_size)


@pytest.mark.parametrize(
    ("sp_size", "tp_size", "fitting"),
    [(5, 1, "1, 2, 3, 4, 6, 12"), (4, 2, "1, 2, 3, 6"), (24, 1, "1, 2, 3, 4, 6, 12")],
)
def test_a_size_that_does_not_divide_is_refused_with_those_that_do(
    sp_size: int, tp_size: int, fitting: str
):
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


CASES: dict[str, dict[str, Any]] = {
    "weights": {},
    "lora": {"lora": LORA},
    "entropy and several updates": {
        "algorithm": {"name": "grpo", "entropy_coef": 0.01},
        "fsdp": {"defer_grad_sync": True, "root_wrap": False},
        "stack": {"num_epochs": 2},
    },
    "recomputed blocks": {"fsdp": {"activation_checkpointing": True}},
    "packed": {"stack": {"max_tokens_per_micro_batch": 24}},
    "one row at a time": {"stack": {"micro_batch_size": 1}},
    "one key-value head": {
        "family": ("qwen3", {"num_key_value_heads": 1, "tie_word_embeddings": False})
    },
    "sliding window": {"family": ("mistral", {"num_key_value_heads": 4, "sliding_window": 3})},
}


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_that_share_sequences_train_like_one(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, case: str
) -> None:
    options = dict(CASES[case])
    family = options.pop("family", None)
    folder = copy_of(tiny_model_dir, tmp_path, family[0], **family[1]) if family else tiny_model_dir
    setup = Setup(str(folder), **options)
    weights, results = ranks.once(1, train, TrainTopology(), setup, STEPS)[0]
    got_weights, got_results = ranks.run(2, train, TrainTopology(sp_size=2), setup, STEPS)[0]
    assert largest_difference(weights, got_weights) < 1e-5
    assert [result.grad_norm for result in got_results] == pytest.approx(
        [r.grad_norm for r in results], abs=1e-5
    )
    assert [result.loss for result in got_results] == pytest.approx(
        [r.loss for r in results], abs=1e-6
    )


@pytest.mark.parametrize("lora", [None, LORA], ids=["copy", "adapters off"])
def test_the_reference_is_computed_on_slices_too(
    ranks: Ranks, tiny_model_dir: Path, lora: LoraConfig | None
) -> None:
    setup = Setup(str(tiny_model_dir), lora=lora)
    whole = ranks.once(1, reference_log_probs, TrainTopology(), setup)[0]
    one, two = ranks.run(2, reference_log_probs, TrainTopology(sp_size=2), setup)
    assert torch.equal(one, two)
    torch.testing.assert_close(one, whole, atol=1e-6, rtol=0)


def positions_per_pass(rank_info: RankInfo, setup: Setup) -> tuple[int, int]:
    """Width of a batch, and of what this rank's MLP sees of it."""
    backend, _ = build(rank_info, TrainTopology(sp_size=2), setup)
    seen: list[int] = []
    block: Any = backend.policy.language_model.model.layers[0]
    block.mlp.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[1]))
    log_probs(backend.policy, batch(0))
    return batch(0).tensor("input_ids").shape[1], seen[0]


def test_a_rank_computes_half_of_the_positions(ranks: Ranks, tiny_model_dir: Path) -> None:
    for width, seen in ranks.run(2, positions_per_pass, Setup(str(tiny_model_dir))):
        assert (width, seen) == (11, 6)
