"""Rows packed end to end give the log-probabilities and gradients of padded rows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from rl_core.errors import ModelError
from rl_core.models import packing
from rl_core.models.causal_lm import CausalLMPolicy, load_policy
from rl_core.train.micro_batches import trim_padding
from schemas.recipe import ModelConfig
from tests.policy_outcome import outcome
from tests.train.jobs import Setup, batch, largest_difference, train
from tests.train.ranks import Ranks

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def policy_of(kind: str, attention: str) -> CausalLMPolicy:
    torch.manual_seed(0)
    if kind == "window":
        # Shorter than the rows, so that it cuts inside them.
        config = MistralConfig(**SHAPE, sliding_window=4)
        return CausalLMPolicy(
            MistralForCausalLM._from_config(config, attn_implementation=attention)
        )
    return CausalLMPolicy(
        LlamaForCausalLM._from_config(LlamaConfig(**SHAPE), attn_implementation=attention)
    )


@pytest.mark.parametrize("kind", ["full", "window"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_rows_equal_padded_rows(kind: str, attention: str) -> None:
    rows, policy = batch(0), policy_of(kind, attention)
    padded = outcome(policy, rows, packed=False)
    policy.enable_packing()
    packed = outcome(policy, rows, packed=True)
    mask = rows.tensor("response_mask") == 1
    torch.testing.assert_close(padded[0][mask], packed[0][mask], atol=1e-5, rtol=0)
    torch.testing.assert_close(padded[1][mask], packed[1][mask], atol=1e-5, rtol=0)
    assert largest_difference(padded[2], packed[2]) < 1e-5
    assert max(float(gradient.abs().max()) for gradient in packed[2].values()) > 0.1


def test_the_padded_path_is_the_same_bits_after_packing_was_enabled() -> None:
    rows, policy = batch(1), policy_of("full", "sdpa")
    before = outcome(policy, rows, packed=False)
    policy.enable_packing()
    after = outcome(policy, rows, packed=False)
    assert torch.equal(before[0], after[0])
    assert largest_difference(before[2], after[2]) == 0


def test_a_row_of_padding_only_takes_no_part_in_a_pack() -> None:
    rows, policy = batch(0), policy_of("full", "sdpa")
    policy.enable_packing()
    expected = outcome(policy, rows[1:], packed=True)
    assert rows.batch is not None
    for name in ("attention_mask", "response_mask", "position_ids"):
        rows.batch[name][0] = 0
    got = outcome(policy, rows, packed=True)
    assert torch.equal(got[0][1:], expected[0])
    assert got[0][0].count_nonzero() == 0


def test_other_rows_in_the_pack_have_no_influence() -> None:
    rows, policy = batch(0), policy_of("full", "sdpa")
    policy.enable_packing()
    alone = outcome(policy, trim_padding(rows[[3]]), packed=True)[0]
    together = outcome(policy, rows, packed=True)[0][3, : alone.shape[1]]
    torch.testing.assert_close(alone[0], together, atol=1e-6, rtol=0)


def test_no_mask_over_all_pairs_of_tokens_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def look(query: Tensor, key: Tensor, value: Tensor, **kwargs: object) -> Tensor:
        seen.append((query.shape[2], kwargs.get("attn_mask")))
        return attend(query, key, value, **kwargs)  # type: ignore[arg-type]

    rows, policy = batch(0), policy_of("full", "sdpa")
    policy.enable_packing()
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", look)
    outcome(policy, rows, packed=True)
    lengths = rows.tensor("attention_mask").sum(-1).tolist()
    assert [length for length, _ in seen] == lengths * SHAPE["num_hidden_layers"]
    assert all(mask is None for _, mask in seen)


def test_a_recurrent_model_is_refused() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(
        MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4)
    )
    said = (
        r"max_tokens_per_micro_batch: rows of MambaForCausalLM cannot be packed .*micro_batch_size"
    )
    with pytest.raises(ModelError, match=said):
        packing.enable_packing(model)


@pytest.mark.parametrize("world_size", [1, 2])
def test_training_on_packed_passes_learns_the_same(
    ranks: Ranks, tiny_model_dir: Path, world_size: int
) -> None:
    padded, _ = ranks.run(1, train, Setup(str(tiny_model_dir)), [0, 1, 2])[0]
    # 25 tokens are two or three rows; 7 rows leave one rank with fewer passes than the other.
    for stack in ({"max_tokens_per_micro_batch": 25}, {"max_tokens_per_micro_batch": 1000}):
        packed, _ = ranks.run(
            world_size, train, Setup(str(tiny_model_dir), stack=stack), [0, 1, 2]
        )[0]
        assert largest_difference(padded, packed) < 1e-5


def test_loading_leaves_the_attention_alone(tiny_model_dir: Path) -> None:
    policy = load_policy(str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir)))
    assert policy.language_model.config._attn_implementation == "sdpa"
