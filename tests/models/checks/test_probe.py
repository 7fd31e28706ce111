"""Every way of computing gives what the model itself gives, or is not used: looked at when a model
is loaded."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from rl_core.errors import ModelError
from rl_core.models.causal_lm import CausalLMPolicy, load_policy
from rl_core.models.checks import probe
from rl_core.models.checks.paths import Path as Way
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Request, Sampling
from schemas.recipe import ModelConfig

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    # Wide, so that log-probabilities lie apart.
    "initializer_range": 0.25,
}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", SHAPE),
    # Logits after the projection: divided, multiplied, capped.
    "granite": (
        "GraniteConfig",
        {**SHAPE, "logits_scaling": 8, "embedding_multiplier": 12, "attention_multiplier": 0.1},
    ),
    "cohere": ("CohereConfig", {**SHAPE, "logit_scale": 0.25}),
    "gemma2": ("Gemma2Config", {**SHAPE, "head_dim": 8, "final_logit_softcapping": 2.0}),
    # Attention that ignores keyword arguments.
    "stablelm": ("StableLmConfig", SHAPE),
    "falcon": ("FalconConfig", {**SHAPE, "alibi": True}),
    # Backbones of other names, positions or none.
    "gpt2": (
        "GPT2Config",
        {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.25},
    ),
    "gpt_neox": ("GPTNeoXConfig", SHAPE),
    "bloom": (
        "BloomConfig",
        {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.25},
    ),
    "opt": (
        "OPTConfig",
        {**SHAPE, "ffn_dim": 48, "word_embed_proj_dim": 16, "init_std": 0.25},
    ),
    # A probe of its rotation raises; attention has sinks.
    "gpt_oss": ("GptOssConfig", {**SHAPE, "head_dim": 8, "num_local_experts": 4}),
    # States of convolutions and recurrences.
    "qwen3_5": ("Qwen3_5TextConfig", {**SHAPE, **LINEAR, "head_dim": 8}),
    "lfm2": ("Lfm2Config", {**SHAPE, "layer_types": ["conv", "full_attention"] * 2}),
    "mamba": (
        "MambaConfig",
        {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
    # Rows of a batch break its own forward: each is decoded by itself.
    "xlnet": (
        "XLNetConfig",
        {
            "vocab_size": 97,
            "d_model": 32,
            "n_layer": 2,
            "n_head": 4,
            "d_inner": 48,
            "attn_type": "uni",
        },
    ),
}


def saved(kind: str, folder: Path, **changes: Any) -> Any:
    config_name, shape = KINDS[kind]
    special = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            getattr(transformers, config_name)(**{**shape, **special, **changes})
        ).eval()
    model.save_pretrained(folder)
    return model


def loaded(folder: Path) -> CausalLMPolicy:
    return load_policy(str(folder), ModelConfig(path=str(folder))).eval()


@torch.no_grad()
def own_log_probs(model: Any, prompt: list[int], response: list[int]) -> Tensor:
    """By plain transformers, the row by itself."""
    ids = torch.tensor([[*prompt, *response]])
    every = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
    return every.gather(-1, ids[0, len(prompt) :, None])[:, 0]


@pytest.mark.parametrize("kind", KINDS)
def test_sampled_tokens_have_the_log_probabilities_of_the_model_itself(
    kind: str, tmp_path: Path
) -> None:
    model, policy = saved(kind, tmp_path), loaded(tmp_path)
    generator = torch.Generator().manual_seed(3)
    prompts = [torch.randint(5, 97, (length,), generator=generator).tolist() for length in (4, 9)]
    requests = [Request(prompt, 3, 8) for prompt in prompts]
    with policy.ready_to_decode() as packed:
        replies = decode(
            policy, requests, Sampling(8, 1.0, (1,), 0), generator, torch.device("cpu"), packed
        )
    for index, reply in enumerate(replies):
        own = own_log_probs(model, prompts[index // 3], reply.token_ids)
        torch.testing.assert_close(torch.tensor(reply.log_probs), own, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_training_uses_only_what_gives_the_log_probabilities_of_the_model_itself(
    kind: str, tmp_path: Path
) -> None:
    model, policy = saved(kind, tmp_path), loaded(tmp_path)
    assert policy.paths is not None and policy.paths.truth is not None
    truth = policy.paths.truth
    own = [
        own_log_probs(model, list(prompt), list(response)).tolist()
        for prompt, group in zip(truth.prompts, truth.responses, strict=True)
        for response in group
    ]
    switches: list[dict[str, bool]] = [{}] if policy.paths.why_not(Way.PADDED) is None else []
    switches += [{"share_prompts": True}] if policy.enable_prompt_sharing() else []
    if not switches:
        found_BT = probe.row_by_row(policy, truth)
        for row_T, theirs in zip(found_BT, own, strict=True):
            torch.testing.assert_close(
                row_T[: len(theirs)], torch.tensor(theirs), atol=1e-4, rtol=0
            )
    for switch in switches:
        found_BT = policy(**truth.batch(), **switch)[0]
        for row_T, theirs in zip(found_BT, own, strict=True):
            torch.testing.assert_close(
                row_T[: len(theirs)], torch.tensor(theirs), atol=1e-4, rtol=0
            )


def test_what_is_not_used_is_named_with_the_reason(tmp_path: Path) -> None:
    saved("stablelm", tmp_path)
    policy = loaded(tmp_path)
    assert policy.paths is not None
    assert {Way.PACKED, Way.SHARED} == set(policy.paths.refused)
    assert not policy.enable_prompt_sharing()
    with pytest.raises(
        ModelError, match=r"rows of StableLmForCausalLM cannot be packed \(differ from .* by up to"
    ):
        policy.enable_packing()
    notes = "\n".join(policy.paths.notes("StableLm"))
    assert "shared prompts differ from the model's own forward by up to" in notes
    assert "the prompt is computed for every row" in notes


def test_a_way_that_a_model_does_not_have_is_closed_and_no_news(tmp_path: Path) -> None:
    saved("lfm2", tmp_path)
    paths = loaded(tmp_path).paths
    assert paths is not None
    assert (set(paths.closed), paths.refused, paths.notes("Lfm2")) == (
        {Way.PACKED, Way.SHARED},
        {},
        [],
    )
    assert "carry something from row to row" in str(paths.why_not(Way.PACKED))
    assert paths.why_not(Way.PADDED) is None


def test_a_model_without_such_attention_is_loaded_with_its_own(tmp_path: Path) -> None:
    saved("gpt_oss", tmp_path)
    policy = loaded(tmp_path)
    assert policy.paths is not None and policy.paths.attention == "eager"
    assert any(
        "it runs with model.attention: eager" in line for line in policy.paths.notes("GptOss")
    )


def test_a_window_that_a_way_forgets_is_found_by_rows_shorter_than_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    KINDS["mistral"] = ("MistralConfig", SHAPE)
    try:
        saved("mistral", tmp_path, sliding_window=1000)
        assert loaded(tmp_path).paths.refused == {}  # type: ignore[union-attr]
        from rl_core.kernels import Rectangle

        honest = Rectangle.mask
        monkeypatch.setattr(
            Rectangle, "mask", lambda self, window, *rest: honest(self, None, *rest)
        )
        policy = loaded(tmp_path)
    finally:
        KINDS.pop("mistral")
    assert policy.paths is not None
    assert {Way.PACKED, Way.SHARED} <= set(policy.paths.refused)
    assert policy.language_model.config.sliding_window == 1000, "windows are as they were"


def test_modules_of_ours_that_compute_something_else_give_way_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_core.kernels import RMSNorm

    saved("llama", tmp_path)
    honest = RMSNorm.forward
    calls: list[int] = []

    def wrong_later(self: RMSNorm, states: Tensor) -> Tensor:
        # Right when it is probed by itself, with two rows of numbers; wrong in a model.
        calls.append(1)
        return honest(self, states) * (1.0 if states.dim() == 2 else 1.5)

    monkeypatch.setattr(RMSNorm, "forward", wrong_later)
    policy = loaded(tmp_path)
    assert calls
    assert policy.paths is not None and Way.KERNELS in policy.paths.refused
    assert not any(isinstance(module, RMSNorm) for module in policy.modules())


def test_modules_of_ours_are_tried_in_a_pass_that_learns_and_stay_refused_at_the_next_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rl_core.kernels.rms_norm import RMSNorm

    saved("llama", tmp_path)
    honest = RMSNorm.forward

    def wrong_when_it_learns(self: RMSNorm, states: Tensor) -> Tensor:
        return honest(self, states) * (
            1.5 if torch.is_grad_enabled() and states.dim() == 3 else 1.0
        )

    with monkeypatch.context() as patch:
        patch.setattr(RMSNorm, "forward", wrong_when_it_learns)
        found = loaded(tmp_path).paths
    assert found is not None and Way.KERNELS in found.refused
    again = load_policy(str(tmp_path), ModelConfig(path=str(tmp_path)), found)
    assert not any(isinstance(module, RMSNorm) for module in again.modules())
    assert any(isinstance(module, RMSNorm) for module in loaded(tmp_path).modules()), (
        "an honest one is used"
    )


def test_a_thousandth_of_the_spread_is_rounding_and_more_is_not() -> None:
    truth = probe.Truth(((5,),), (((6, 7), (8,)),), ((-1.0, -2.0), (-3.0,)), spread=4.0)
    exact_BT = torch.tensor([[-1.0, -2.0], [-3.0, 0.0]])
    last = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert probe._why_it_differs(truth, lambda: exact_BT + 0.0039 * last) is None
    assert "by up to 0.0041" in str(probe._why_it_differs(truth, lambda: exact_BT - 0.0041 * last))

    def broken() -> Tensor:
        raise IndexError("out of range\nin a long story")

    assert probe._why_it_differs(truth, broken) == "cannot be computed (IndexError: out of range)"


def test_probed_rows_have_no_word_that_means_something_special(tmp_path: Path) -> None:
    saved("llama", tmp_path, vocab_size=6)
    paths = loaded(tmp_path).paths
    assert paths is not None and paths.truth is not None
    tokens = {token for prompt in paths.truth.prompts for token in prompt}
    tokens |= {token for group in paths.truth.responses for response in group for token in response}
    assert tokens == {3, 4, 5}


def test_weights_that_are_stored_as_other_than_floats_are_named() -> None:
    model: Any = torch.nn.Linear(2, 2)
    model.empty = torch.nn.Parameter(torch.zeros(0))
    probe.check_weights(model)
    model.hf_quantizer = SimpleNamespace(
        is_trainable=False, quantization_config=SimpleNamespace(quant_method="gptq")
    )
    with pytest.raises(ModelError, match=r"quantised weights \(gptq\) cannot be trained"):
        probe.check_weights(model)
    model.hf_quantizer.is_trainable = True
    probe.check_weights(model)
    model.weight = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(
        ModelError, match="weight is stored as int8; quantised weights cannot be trained"
    ):
        probe.check_weights(model)


def test_weights_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    model = saved("llama", tmp_path)
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    model.save_pretrained(tmp_path)
    with pytest.raises(
        ModelError, match=r"1 weights hold NaN or infinity, the first is model\.layers\.1\.mlp"
    ):
        loaded(tmp_path)


def test_a_number_that_is_none_is_no_small_difference() -> None:
    truth = probe.Truth(((5,),), (((6, 7),),), ((-1.0, -2.0),), 1.0)
    assert truth.largest_difference(torch.tensor([[-1.0, -2.5]])) == 0.5
    assert truth.largest_difference(torch.tensor([[-1.0, float("nan")]])) == float("inf")
    assert truth.largest_difference(torch.tensor([[float("nan"), -2.0]])) == float("inf")


def test_a_saved_buffer_may_be_infinite_but_must_be_a_number() -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("mask", torch.tensor([0.0, float("-inf")]))
    model.register_buffer("scratch", torch.tensor([float("nan")]), persistent=False)
    probe.check_weights(model)
    model.register_buffer("scale", torch.tensor([1.0, float("nan")]))
    with pytest.raises(ModelError, match="1 weights hold NaN or infinity, the first is scale"):
        probe.check_weights(model)


def test_the_model_attends_as_before_whatever_was_tried(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    model = loaded(tmp_path).language_model
    before = model.config._attn_implementation
    with probe.same_attention(model):
        model.set_attn_implementation("eager")
    assert model.config._attn_implementation == before == "sdpa"


def test_a_second_load_does_not_look_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("stablelm", tmp_path)
    found = loaded(tmp_path).paths
    monkeypatch.setattr(probe, "truth_of", lambda policy: pytest.fail("looked again"))
    again = load_policy(str(tmp_path), ModelConfig(path=str(tmp_path)), found)
    assert again.paths is found
