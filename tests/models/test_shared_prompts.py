"""Siblings whose prompt is computed once get the log-probabilities and gradients of rows computed
one by one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rl_core.data_proto import DataProto
from rl_core.errors import ModelError
from rl_core.models import packing
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.decoding.decode import positions_of
from tests.policy_outcome import outcome

SHAPE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SHAPE)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SHAPE, tie_word_embeddings=True)),
    # Shorter than the rows, so that it cuts inside them.
    "window": (MistralForCausalLM, MistralConfig(**SHAPE, sliding_window=6)),
}
NUM_PROMPT, NUM_RESPONSE = 9, 24
GROUPS = (3, 1, 4, 2)
"""Siblings of each prompt."""


def policy_of(family: str, attention: str = "sdpa") -> CausalLMPolicy:
    torch.manual_seed(0)
    model_cls, config = FAMILIES[family]
    policy = CausalLMPolicy(model_cls._from_config(config, attn_implementation=attention))
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.dim() == 2:
                # Far from uniform, or mistakes would hide.
                parameter.mul_(3)
    return policy


def siblings(seed: int = 0) -> DataProto:
    """Ragged groups; one response alone is long, one acts in two turns, one row says nothing."""
    generator = torch.Generator().manual_seed(seed)
    num_rows = sum(GROUPS)
    counts = torch.tensor(GROUPS)
    prompt_lengths = torch.randint(
        2, NUM_PROMPT + 1, (len(GROUPS),), generator=generator
    ).repeat_interleave(counts)
    lengths = torch.randint(1, 9, (num_rows,), generator=generator)
    lengths[4], lengths[5] = NUM_RESPONSE, 7
    prompts = torch.randint(
        3, 40, (len(GROUPS), NUM_PROMPT), generator=generator
    ).repeat_interleave(counts, 0)
    replies = torch.randint(3, 40, (num_rows, NUM_RESPONSE), generator=generator)
    prompt_mask = (torch.arange(NUM_PROMPT)[None] >= NUM_PROMPT - prompt_lengths[:, None]).long()
    mask = (torch.arange(NUM_RESPONSE)[None] < lengths[:, None]).long()
    attention = torch.cat([prompt_mask, mask], 1)
    acts = mask.clone()
    acts[5, 2:4] = 0
    acts[8] = 0
    return DataProto.from_dict(
        {
            "input_ids": torch.cat([prompts, replies], 1) * attention,
            "attention_mask": attention,
            "position_ids": positions_of(attention),
            "response_mask": acts,
        }
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_shared_prompts_give_the_same_log_probs_and_gradients(family: str) -> None:
    rows, policy = siblings(), policy_of(family)
    plain = outcome(policy, rows)
    assert policy.enable_prompt_sharing()
    shared = outcome(policy, rows, share_prompts=True)
    torch.testing.assert_close(shared[0], plain[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(shared[1], plain[1], atol=1e-5, rtol=0)
    assert plain[0].min() < -4.5
    assert shared[2].keys() == plain[2].keys()
    for name, gradient in shared[2].items():
        torch.testing.assert_close(gradient, plain[2][name], atol=1e-5, rtol=1e-4, msg=name)
    assert max(float(gradient.abs().max()) for gradient in plain[2].values()) > 1


def test_attention_in_bfloat16_gives_the_same_but_for_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, policy = siblings(), policy_of("llama").bfloat16()
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    assert policy.enable_prompt_sharing()
    plain = outcome(policy, rows, share_prompts=True)
    lengths: list[int] = []
    attend = packing.attend_in_bfloat16

    def watched(query: Tensor, *others: Any) -> Tensor:
        lengths.append(query.shape[2])
        return attend(query, *others)

    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    monkeypatch.setattr(packing, "attend_in_bfloat16", watched)
    narrow = outcome(policy, rows, share_prompts=True)
    assert max(lengths) == NUM_RESPONSE
    assert (narrow[0] - plain[0]).norm() < 0.02 * plain[0].norm()
    for name, gradient in narrow[2].items():
        assert (gradient - plain[2][name]).norm() < 0.05 * plain[2][name].norm(), name


# transformers is about to rename how checkpointing is asked for.
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable:FutureWarning")
def test_a_recomputed_block_gives_the_same() -> None:
    rows, policy = siblings(), policy_of("llama")
    plain = outcome(policy, rows)
    policy.enable_activation_checkpointing()
    policy.train()
    assert policy.enable_prompt_sharing()
    shared = outcome(policy, rows, share_prompts=True)
    for name, gradient in shared[2].items():
        torch.testing.assert_close(gradient, plain[2][name], atol=1e-5, rtol=1e-4, msg=name)


def test_every_token_meets_the_layers_once() -> None:
    rows, policy = siblings(), policy_of("llama")
    assert policy.enable_prompt_sharing()
    seen: list[int] = []
    policy.model.model.layers[0].mlp.register_forward_hook(
        lambda _, args, __: seen.append(args[0].numel() // 32)
    )
    outcome(policy, rows, share_prompts=True)
    outcome(policy, rows)
    attention, starts = (
        rows.tensor("attention_mask"),
        [sum(GROUPS[:group]) for group in range(len(GROUPS))],
    )
    once = int(attention[:, NUM_PROMPT:].sum() + attention[starts, :NUM_PROMPT].sum())
    assert seen == [once, attention.numel()]


def test_rows_that_share_nothing_are_taken_as_they_are() -> None:
    rows, policy = siblings(), policy_of("llama")
    rows = rows[[0, 3, 4, 8]]
    plain = outcome(policy, rows)
    assert policy.enable_prompt_sharing()
    shared = outcome(policy, rows, share_prompts=True)
    torch.testing.assert_close(shared[0], plain[0], atol=1e-5, rtol=0)


def test_models_that_would_learn_something_else_are_left_alone() -> None:
    assert not policy_of("llama", "eager").enable_prompt_sharing()
    dropping = policy_of("llama")
    dropping.model.config.attention_dropout = 0.1
    assert not dropping.enable_prompt_sharing()
    adapted = policy_of("llama")
    adapted.model.add_module("extra", nn.Dropout(0.1))
    assert not adapted.enable_prompt_sharing()


def test_a_model_whose_layers_see_a_neighbour_is_left_alone_and_never_packed() -> None:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    shape = SHAPE | {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}
    shape.pop("head_dim")
    policy = CausalLMPolicy(
        Lfm2ForCausalLM._from_config(Lfm2Config(**shape), attn_implementation="sdpa")
    )
    assert not policy.enable_prompt_sharing()
    with pytest.raises(
        ModelError, match=r"rows of Lfm2ForCausalLM cannot be packed .*conv.*.*micro_batch_size"
    ):
        policy.enable_packing()
