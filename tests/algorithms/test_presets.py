"""Each preset is what its paper says, survives a pickle, and does one optimiser step's worth of
work."""

import pickle
from typing import Any

import pytest
import torch

from rl_core.algorithms import StageAlgorithm, algorithms
from rl_core.algorithms.policy_gradient import PolicyGradient
from tests.algorithms.batches import B, T, batch, build
from tests.algorithms.denominators import denominators_of

SEQ, TOKEN = "seq-mean-token-mean", "token-mean"

PRESETS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    # preset: advantage, loss, aggregation, and settings of the loss that make it what it is
    "grpo": ("grpo", "ppo_clip", TOKEN, {"clip_low": 0.2, "clip_high": 0.2}),
    "dr_grpo": ("grpo", "ppo_clip", "seq-mean-token-sum-norm", {}),
    "dapo": ("grpo", "ppo_clip", TOKEN, {"clip_low": 0.2, "clip_high": 0.28}),
    "rloo": ("rloo", "ppo_clip", "seq-mean-token-sum", {}),
    "reinforce_plus_plus": ("reinforce_plus_plus", "ppo_clip", TOKEN, {}),
    "gspo": ("grpo", "gspo", SEQ, {"clip_low": 3e-4, "clip_high": 4e-4}),
    "cispo": ("grpo", "cispo", TOKEN, {"clip_low": 1.0, "clip_high": 4.0}),
    "sapo": ("grpo", "sapo", SEQ, {"tau_positive": 1.0, "tau_negative": 1.05}),
    "gmpo": ("grpo", "gmpo", SEQ, {"clip_low": 0.4, "clip_high": 0.4}),
    "dppo": ("grpo", "dppo_tv", TOKEN, {"delta": 0.2}),
    "drpo": ("grpo", "drpo", TOKEN, {"eps": 12.5, "weigh_by_probability": True}),
    "ppo": ("gae", "ppo_clip", TOKEN, {}),
    "remax": ("remax", "reinforce", "seq-mean-token-sum", {}),
    "opo": ("opo", "reinforce", TOKEN, {}),
    "gpg": ("gpg", "gpg", TOKEN, {}),
    "flow_grpo": ("grpo", "ppo_clip", TOKEN, {"clip_low": 1e-4, "clip_high": 1e-4}),
    "mix_grpo": ("grpo", "ppo_clip", TOKEN, {"clip_low": 1e-4}),
    "dance_grpo": ("grpo", "ppo_clip", TOKEN, {"clip_low": 1e-4}),
    "flow_dppo": ("grpo", "flow_dppo", TOKEN, {"max_kl": 1e-4}),
}
OTHERS = {"diffusion_nft", "mpo", "dpo", "ipo", "simpo", "orpo", "kto"}
OTHERS |= {"distillation", "self_distillation", "rejection_sampling"}
OTHERS |= {"bradley_terry", "sft", "flow_sft"}


def policy_gradient(name: str) -> PolicyGradient:
    algorithm = build(name)
    assert isinstance(algorithm, PolicyGradient)
    return algorithm


def test_every_preset_is_in_a_table():
    assert set(PRESETS) | OTHERS == set(algorithms.names())


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_preset_holds_the_published_setting(name: str):
    advantage, loss, aggregation, settings = PRESETS[name]
    algorithm = policy_gradient(name)
    assert algorithm.config.advantage["name"] == advantage and algorithm.config.loss["name"] == loss
    stated = algorithm.policy_loss.config.model_dump()
    assert stated["aggregation"] == aggregation and settings.items() <= stated.items()


def test_diffusion_presets_differ_by_kernel_window_and_kl():
    flow, mix, dance = (
        policy_gradient(name).config for name in ("flow_grpo", "mix_grpo", "dance_grpo")
    )
    assert (flow.sde.kernel, flow.sde.eta, flow.kl.coef, flow.kl.kind) == (
        "flow",
        0.7,
        0.04,
        "exact",
    )  # pyright: ignore
    assert (mix.sde.steps.kind, mix.sde.steps.size, mix.kl.coef) == ("window", 4, 0.0)  # pyright: ignore
    assert (dance.sde.kernel, dance.sde.eta) == ("dance", 0.3)  # pyright: ignore
    assert flow.advantage["std_scope"] == "batch" and flow.advantage["clamp"] == 5.0
    # A recipe changes one key of a block and keeps the others.
    assert (
        algorithms.resolve({"name": "mix_grpo", "sde": {"eta": 0.5}}, "algorithm")[1].sde.steps.size
        == 4
    )


@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_and_its_settings_survive_a_pickle(name: str):
    cls, config = algorithms.resolve({"name": name}, "algorithm")
    again_cls, again = pickle.loads(pickle.dumps((cls, config)))
    assert (again_cls, again) == (cls, config)
    assert isinstance(again_cls(again), StageAlgorithm)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_rewards_become_a_gradient_towards_the_better_rows(name: str):
    algorithm = policy_gradient(name)
    data = batch(seed=1)
    rewards_B = torch.tensor([1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0])
    log_probs_BT = data["old_log_probs_BT"].clone().requires_grad_()
    advantages_BT, _ = algorithm.advantages(
        rewards_B,
        torch.zeros(B).long(),
        data["mask_BT"],
        values_BT=torch.full((B, T), 0.4),
        greedy_rewards_B=torch.full((B,), 0.4),
        log_probs_BT=data["old_log_probs_BT"],
        ref_log_probs_BT=data["old_log_probs_BT"],
    )
    loss, _ = algorithm.loss(
        **{
            **data,
            "log_probs_BT": log_probs_BT,
            "advantages_BT": advantages_BT.double(),
            "ref_log_probs_BT": None,
        }
        | ({"ref_log_probs_BT": data["old_log_probs_BT"]} if algorithm.needs_reference else {}),
        denominators=denominators_of(data["mask_BT"]),
    )
    loss.backward()
    assert log_probs_BT.grad is not None
    slopes_B = log_probs_BT.grad.sum(1)
    acting_B = data["mask_BT"].sum(1) > 0
    assert (slopes_B[acting_B & (rewards_B > 0)] < 0).all() and (
        slopes_B[acting_B & (rewards_B == 0)] > 0
    ).all()
