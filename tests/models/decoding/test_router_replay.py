"""Experts that were recorded are computed again, whatever the router would choose now."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from rl_core.errors import ModelError
from rl_core.models.causal_lm import CausalLMPolicy, recompute_in_backward
from rl_core.models.decoding import decode as decoding
from rl_core.models.decoding.decode import decode, forced_log_probs
from rl_core.models.decoding.request import Request, Sampling
from rl_core.models.decoding.router_replay import Recording, Replay, routed_by
from rl_core.models.decoding.routing import replay_of

NUM_EXPERTS, NUM_CHOSEN = 6, 2
BASE: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_experts_per_tok": NUM_CHOSEN,
    # Wide enough that a wrong expert is felt.
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 2,
}
SMALL = {"moe_intermediate_size": 12}
FAMILIES: dict[str, dict[str, Any]] = {
    # One layer of the three has no experts.
    "qwen3_moe": {"num_experts": NUM_EXPERTS, "mlp_only_layers": [1], "head_dim": 8, **SMALL},
    "qwen2_moe": {"num_experts": NUM_EXPERTS, "shared_expert_intermediate_size": 12, **SMALL},
    "mixtral": {"num_local_experts": NUM_EXPERTS},
    "olmoe": {"num_experts": NUM_EXPERTS},
    "gpt_oss": {"num_local_experts": NUM_EXPERTS, "head_dim": 8},
    "granitemoe": {"num_local_experts": NUM_EXPERTS},
    # Scores by a sigmoid, and one group of all experts, which is compared by a topk of its own.
    "glm4_moe": {"n_routed_experts": NUM_EXPERTS, "first_k_dense_replace": 1, **SMALL},
    # Groups of experts, of which one is left out.
    "deepseek_v3": {
        **{"n_routed_experts": NUM_EXPERTS, "first_k_dense_replace": 1, **SMALL},
        **{"n_group": 3, "topk_group": 2, "q_lora_rank": 8, "kv_lora_rank": 8},
        **{"qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8},
    },
}


def policy_of(family: str, **shape: Any) -> CausalLMPolicy:
    """A tiny random model whose routers find all experts nearly equal."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(family, **BASE | FAMILIES.get(family, {}) | shape)
        policy = CausalLMPolicy(AutoModelForCausalLM.from_config(config)).eval()
    for weight in routers(policy):
        weight.data[:] = weight.data[0]
    for name, bias in policy.named_parameters():
        if name.endswith(".router.bias"):
            bias.data.zero_()
    change_routers(policy, 0)
    return policy


def routers(policy: nn.Module) -> list[nn.Parameter]:
    names = (".gate.weight", ".router.weight", ".router.layer.weight")
    return [one for name, one in policy.named_parameters() if name.endswith(names)]


def change_routers(policy: nn.Module, seed: int) -> None:
    """Change which experts are the best, and hardly their weights."""
    generator = torch.Generator().manual_seed(seed)
    for weight in routers(policy):
        weight.data += 1e-5 * torch.randn(weight.shape, generator=generator)


def rows() -> Tensor:
    return torch.randint(3, 40, (3, 9), generator=torch.Generator().manual_seed(5))


def logits(policy: CausalLMPolicy, routing: Any = None) -> Tensor:
    with torch.no_grad(), routed_by(routing):
        return policy.language_model(rows()).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_a_replayed_pass_equals_the_recorded_one_after_the_routers_changed(family: str) -> None:
    policy = policy_of(family)
    policy.enable_router_replay()
    unseen = logits(policy)
    first, second = Recording(), Recording()
    recorded = logits(policy, first)
    assert torch.equal(unseen, recorded), "recording changes nothing"
    chosen_RSMK = first.take(3)
    assert chosen_RSMK.shape == (3, 9, len(routers(policy)), NUM_CHOSEN)
    assert chosen_RSMK.dtype is torch.uint8
    change_routers(policy, 1)
    own = logits(policy, second)
    assert not torch.equal(chosen_RSMK.sort().values, second.take(3).sort().values)
    replayed = logits(policy, Replay(chosen_RSMK.flatten(0, 1).short()))
    torch.testing.assert_close(replayed, recorded, atol=2e-4, rtol=0)
    assert float((own - recorded).abs().max()) > 0.02


@pytest.mark.parametrize("recomputes", [False, True], ids=["kept", "recomputed"])
def test_the_router_gets_a_gradient_of_the_given_experts(recomputes: bool) -> None:
    policy = policy_of("qwen3_moe", norm_topk_prob=True)
    if recomputes:
        backbone: Any = policy.backbone
        for layer in backbone.layers:
            recompute_in_backward(layer)
    policy.enable_router_replay()
    recording = Recording()
    logits(policy, recording)
    given = Replay(recording.take(3).flatten(0, 1).short())
    change_routers(policy, 1)
    with routed_by(given):
        said = policy.language_model(rows()).logits.log_softmax(-1)[..., 7].sum()
    # Recomputed here, where no routing is in effect any more.
    said.backward()
    plain = policy_of("qwen3_moe", norm_topk_prob=True)
    plain.language_model(rows()).logits.log_softmax(-1)[..., 7].sum().backward()
    for got, wanted in zip(routers(policy), routers(plain), strict=True):
        assert got.grad is not None and wanted.grad is not None
        assert float(got.grad.abs().max()) > 1e-3
        torch.testing.assert_close(got.grad, wanted.grad, atol=1e-3, rtol=1e-2)


def test_tokens_without_a_record_are_left_to_the_router() -> None:
    policy = policy_of("mixtral")
    policy.enable_router_replay()
    recording = Recording()
    recorded = logits(policy, recording)
    chosen = recording.take(3).numpy()
    change_routers(policy, 1)
    own = logits(policy)
    used = torch.ones(3, 9)
    assert replay_of([None, None, None], used, None) is None
    # The second row was not sampled, the third says its first four tokens.
    got = logits(policy, replay_of([chosen[0], None, chosen[2, :4]], used, None))
    torch.testing.assert_close(got[0], recorded[0], atol=2e-4, rtol=0)
    torch.testing.assert_close(got[1], own[1], atol=1e-6, rtol=0)
    torch.testing.assert_close(got[2, :4], recorded[2, :4], atol=2e-4, rtol=0)
    assert float((got[2, 4:] - recorded[2, 4:]).abs().max()) > 0.02


def test_a_record_begins_at_the_first_token_after_padding() -> None:
    used = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
    routing = np.arange(1, 4, dtype=np.uint8).reshape(3, 1, 1)
    own = torch.full((10, 1), 9)
    whole = replay_of([routing[:2], routing], used, None)
    assert whole is not None
    assert whole.choose(0, own)[:, 0].tolist() == [9, 9, 1, 2, 9, 1, 2, 3, 9, 9]
    packed = replay_of([routing, routing], used, used.flatten().nonzero()[:, 0])
    assert packed is not None
    assert packed.choose(0, own[:6])[:, 0].tolist() == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("cached", [True, False], ids=["cached", "recomputed"])
def test_replies_say_the_experts_of_their_prompt_and_of_all_tokens_but_the_last(
    cached: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of("qwen3_moe")
    policy.enable_router_replay()
    if not cached:
        read = decoding.read_prompts
        monkeypatch.setattr(
            decoding, "read_prompts", lambda *args: replace(read(*args), cache=None)
        )
    sampling = Sampling(5, 1.0, (2,), 0, records_routing=True)
    requests = [Request([5, 6, 7, 8], 3, 20), Request([9, 10], 2, 20)]
    replies = decode(
        policy, requests, sampling, torch.Generator().manual_seed(3), torch.device("cpu")
    )
    assert len({len(reply.token_ids) for reply in replies}) > 1, "some end early"
    prompts = [request.token_ids for request in requests for _ in range(request.num_replies)]
    for prompt, reply in zip(prompts, replies, strict=True):
        assert reply.routing is not None
        read_ids = torch.tensor([prompt + reply.token_ids[:-1]])
        recording = Recording()
        with torch.no_grad(), routed_by(recording):
            policy.language_model(read_ids)
        # Rounding may reorder experts that are nearly equal.
        again = recording.take(1)[0].sort().values.numpy()
        assert reply.routing.shape == again.shape
        assert (np.sort(reply.routing) == again).mean() > 0.9


def test_replies_say_nothing_unless_asked() -> None:
    policy = policy_of("mixtral")
    sampling = Sampling(3, 1.0, (2,), 0)
    replies = decode(
        policy, [Request([5, 6], 1, 9)], sampling, torch.Generator(), torch.device("cpu")
    )
    assert replies[0].routing is None
    assert forced_log_probs(policy, [([5, 6], [replies[0].token_ids])])


def test_a_model_without_experts_is_refused_by_name() -> None:
    policy = policy_of("llama")
    with pytest.raises(ModelError, match=r"router_replay: LlamaForCausalLM has no experts that"):
        policy.enable_router_replay()


def test_experts_beside_attention_are_refused_by_name() -> None:
    shape = {"num_experts": 6, "top_k_experts": 2, "enable_moe_block": True, "head_dim": 8}
    policy = policy_of("gemma4_text", **shape, **SMALL)
    with pytest.raises(ModelError, match=r"router_replay: Gemma4TextDecoderLayer has its experts"):
        policy.enable_router_replay()


def test_a_router_that_calls_no_topk_is_refused_by_name() -> None:
    policy = policy_of("phimoe", num_local_experts=NUM_EXPERTS)
    policy.enable_router_replay()
    with pytest.raises(ModelError, match=r"PhimoeSparseMoeBlock chooses its experts by something"):
        logits(policy, Recording())


def test_a_router_whose_topk_is_not_what_is_computed_is_refused() -> None:
    policy = policy_of("mixtral")
    backbone: Any = policy.backbone
    gate = backbone.layers[0].mlp.gate
    forward = gate.forward

    def shifted(*args: Any) -> Any:
        said, weights, chosen = forward(*args)
        return said, weights, (chosen + 1) % NUM_EXPERTS

    gate.forward = shifted
    policy.enable_router_replay()
    with pytest.raises(ModelError, match=r"computes other experts than those that its topk gives"):
        logits(policy, Recording())
