"""A model's own dropout is off in everything that is computed of it, unless a recipe turns it on
for learning."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rl_core.models.bundle import ModelBundle
from rl_core.ranks.rank_info import RankInfo
from schemas.recipe import LoraConfig, ModelConfig
from tests.models.checks.test_probe import saved
from tests.train.jobs import Setup, batch, make_backend, make_stack
from tests.train.ranks import Ranks


def measured(
    rank_info: RankInfo, model_dir: str, dropout: bool, lora: LoraConfig | None
) -> tuple[float, float, float]:
    """Largest distance of the learning pass, of the anchor and of the reference from the policy as
    it samples."""
    bundle = ModelBundle.__new__(ModelBundle)
    bundle.source, bundle.config = model_dir, ModelConfig(path=model_dir, dropout=dropout)
    bundle.text_alone, bundle.processor, bundle.tokenizer = True, None, None
    from rl_core.models.family import load_policy

    bundle.policy = load_policy(model_dir, bundle.config)
    setup = Setup(model_dir, lora=lora)
    backend = make_backend(rank_info, setup, with_reference=True, bundle=bundle)
    stack = make_stack(backend, setup)
    rows = batch(0)
    with backend.gathered() as policy:
        sampled = stack._forward(policy, rows, with_entropy=False)[0]
    torch.manual_seed(1)
    learning = stack._forward(backend.policy, rows, with_entropy=False)[0]
    with backend.anchor_policy() as anchor:
        old = stack._forward(anchor, rows, with_entropy=False)[0]
    with backend.reference_policy() as reference:
        ref = stack._forward(reference, rows, with_entropy=False)[0]
    return tuple(float((one - sampled).abs().max()) for one in (learning, old, ref))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def dropping_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-2, whose residuals, embeddings and attention drop out half of what they hold."""
    folder = tmp_path_factory.mktemp("dropping")
    saved("gpt2", folder, resid_pdrop=0.5, embd_pdrop=0.5, attn_pdrop=0.5)
    return folder


@pytest.mark.parametrize(
    "lora", [None, LoraConfig(rank=4, target_modules=["c_attn"])], ids=["full", "lora"]
)
def test_what_learns_is_what_sampled(
    ranks: Ranks, dropping_dir: Path, lora: LoraConfig | None
) -> None:
    assert max(ranks.run(1, measured, str(dropping_dir), False, lora)[0]) < 1e-5


def test_a_recipe_can_turn_it_on_for_learning_alone(ranks: Ranks, dropping_dir: Path) -> None:
    learning, old, reference = ranks.run(1, measured, str(dropping_dir), True, None)[0]
    assert learning > 0.1
    assert max(old, reference) < 1e-5


def test_adapters_drop_out_while_they_learn_and_never_else(tmp_path: Path) -> None:
    from rl_core.models.adapters.lora import inject_lora
    from rl_core.models.causal_lm import load_policy
    from rl_core.models.modes import evaluation_mode, learning_mode

    saved("llama", tmp_path)
    policy = load_policy(str(tmp_path), ModelConfig(path=str(tmp_path)))
    inject_lora(policy, LoraConfig(rank=4, dropout=0.5), seed=0)
    learning_mode(policy, own_dropout=False)
    at_work = [
        name
        for name, one in policy.named_modules()
        if isinstance(one, torch.nn.Dropout) and one.training
    ]
    assert at_work and all("lora_dropout" in name for name in at_work)
    with evaluation_mode(policy):
        assert not any(module.training for module in policy.modules())
    assert at_work == [
        n for n, one in policy.named_modules() if isinstance(one, torch.nn.Dropout) and one.training
    ]
