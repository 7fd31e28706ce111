"""A plain decoder stepped through here says what transformers says, and whatever is another decoder
is left to it."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from rl_core.kernels import accelerate, packed_weights
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.decoding import decoder_memory, next_states
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.decoder_memory import SharedPrompts
from rl_core.models.decoding.plain_decoder import PlainDecoder
from rl_core.models.decoding.request import Reply, Request, Sampling

pytestmark = pytest.mark.skipif(
    not torch.backends.cpu.get_cpu_capability().startswith("AVX"),
    reason="weights are packed on x86 alone",
)
SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Weights large enough for a token to depend on those before it.
    "initializer_range": 0.4,
}
PLAIN = {
    "llama": (LlamaForCausalLM, LlamaConfig(**SMALL)),
    "llama with biases": (LlamaForCausalLM, LlamaConfig(**SMALL, attention_bias=True)),
    "mistral": (MistralForCausalLM, MistralConfig(**SMALL, sliding_window=None)),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**SMALL)),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**SMALL)),
}
OTHER = {
    "a window": (MistralForCausalLM, MistralConfig(**SMALL, sliding_window=4)),
    "more norms and scores in bounds": (Gemma2ForCausalLM, Gemma2Config(**SMALL)),
    "an MLP without gate, angles for a part": (PhiForCausalLM, PhiConfig(**SMALL)),
    "eager attention": (LlamaForCausalLM, LlamaConfig(**SMALL, attn_implementation="eager")),
}
SEEMING = {
    "smaller residuals": (GraniteForCausalLM, GraniteConfig(**SMALL, residual_multiplier=0.5)),
    "layers without positions": (
        SmolLM3ForCausalLM,
        SmolLM3Config(**SMALL, no_rope_layer_interval=2),
    ),
}


def policy_of(case: tuple[Any, Any], dtype: torch.dtype = torch.float32) -> CausalLMPolicy:
    torch.manual_seed(0)
    model_class, config = case
    model = model_class(config).eval()
    accelerate(model, model.device)
    return CausalLMPolicy(model.to(dtype))


def play(
    policy: CausalLMPolicy, *, packed: bool, known: bool = True, temperature: float = 1.0
) -> list[Reply]:
    """Replies to two ragged prompts, whose rows leave the batch one by one."""
    requests = [Request([5, 6, 7, 8, 9, 10], 4, 20), Request([11, 12], 4, 20)]
    sampling = Sampling(20, temperature, tuple(range(80, 88)), 0)
    with packed_weights(policy.model) if packed else nullcontext({}) as products:
        generator = torch.Generator().manual_seed(0)
        return decode(
            policy, requests, sampling, generator, torch.device("cpu"), products if known else None
        )


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of rows of each step that is taken here."""
    taken: list[int] = []
    step = PlainDecoder.step

    def counted(self: PlainDecoder, tokens_R: torch.Tensor, *rest: Any) -> torch.Tensor:
        taken.append(len(tokens_R))
        return step(self, tokens_R, *rest)

    monkeypatch.setattr(PlainDecoder, "step", counted)
    return taken


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lets siblings share their prompt's keys however few these are: the number of layers that they
    were asked in."""
    asked: list[int] = []
    attend = SharedPrompts.attend

    def counted(self: SharedPrompts, layer: int, *rest: Any) -> torch.Tensor:
        asked.append(layer)
        return attend(self, layer, *rest)

    monkeypatch.setattr(SharedPrompts, "attend", counted)
    monkeypatch.setattr(decoder_memory, "SAVED_KEYS", 1)
    return asked


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("shares", [False, True])
def test_a_plain_decoder_says_what_transformers_says(
    name: str, shares: bool, steps: list[int], request: pytest.FixtureRequest
):
    asked = request.getfixturevalue("shared") if shares else []
    policy = policy_of(PLAIN[name])
    expected = play(policy, packed=False)
    assert not steps
    for count in (1, 2):
        replies = play(policy, packed=True)
        longest = max(len(reply.token_ids) for reply in replies)
        assert len(steps) == 1 + count * (longest - 1), (
            "a probe, and each token but the first, which the prompt gives"
        )
        assert len(asked) == (3 * count * (longest - 1) if shares else 0)
        for reply, wanted in zip(replies, expected, strict=True):
            assert reply.token_ids == wanted.token_ids
            assert reply.log_probs == pytest.approx(wanted.log_probs, abs=1e-4)
    assert len(set(steps[1:])) > 2, "rows leave"
    seen = [value for reply in expected for value in reply.log_probs]
    assert max(seen) - min(seen) > 2, "all tokens were about equally likely"


def test_in_bfloat16_it_rounds_where_transformers_rounds(steps: list[int]):
    policy = policy_of(PLAIN["llama"], torch.bfloat16)
    theirs = play(policy, packed=True, known=False)
    assert not steps
    ours = play(policy, packed=True)
    assert steps
    assert [(one.token_ids, one.log_probs) for one in ours] == [
        (one.token_ids, one.log_probs) for one in theirs
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_adapters_count(dtype: torch.dtype, steps: list[int]):
    policy = policy_of(PLAIN["llama"])
    bare = play(policy, packed=True)
    config = LoraConfig(
        r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM"
    )
    policy = CausalLMPolicy(get_peft_model(policy.model, config)).eval()
    policy.to(dtype)
    steps.clear()
    replies, expected = play(policy, packed=True), play(policy, packed=True, known=False)
    assert steps and replies != bare
    assert replies == expected


@pytest.mark.parametrize("name", OTHER)
def test_what_has_other_parts_is_left_to_transformers(name: str, steps: list[int]):
    policy = policy_of(OTHER[name])
    assert play(policy, packed=True) == play(policy, packed=True, known=False)
    assert not steps


@pytest.mark.parametrize("name", SEEMING)
def test_what_does_something_else_with_the_same_parts_is_found_out_in_a_token(
    name: str, steps: list[int]
):
    policy = policy_of(SEEMING[name])
    expected = play(policy, packed=True, known=False)
    for _ in range(2):
        assert play(policy, packed=True) == expected
    assert len(steps) == 1
    assert next_states._is_plain_decoder[policy.language_model.model] is False


@pytest.mark.parametrize("part", ["self_attn", "mlp.down_proj"])
def test_hooks_are_not_passed_over(part: str, steps: list[int]):
    policy, calls = policy_of(PLAIN["llama"]), []
    layer = policy.language_model.model.layers[1].get_submodule(part)
    handle = layer.register_forward_hook(lambda *_: calls.append(1))
    replies = play(policy, packed=True)
    assert len(calls) == max(len(reply.token_ids) for reply in replies) and not steps
    handle.remove()
    assert play(policy, packed=True) == replies and steps
