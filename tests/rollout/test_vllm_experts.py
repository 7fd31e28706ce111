"""Models of experts with the vLLM engine, for real on a CPU: transformers fuses what their
checkpoints, and vLLM, have apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_core.errors import WeightMismatch
from tests.models.tiny_causal import Case, save
from tests.rollout.built import engine_of
from tests.rollout.vllm_parts import ON_VLLM, TOLERANCE, agree, recipe, running

pytestmark = ON_VLLM

# Heads of 32, the smallest that vLLM's attention on CPUs knows, and peaked distributions.
SHAPE = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "num_experts_per_tok": 2,
}
FAMILIES = {
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 32, "norm_topk_prob": True},
    "mixtral": {"num_local_experts": 4, "intermediate_size": 32},
}
TAMPERED = "model.model.layers.1.mlp.experts.down_proj"


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_are_loaded_with_the_weights_of_every_step(
    ray_cluster: None, tiny_model_dir: Path, tmp_path: Path, family: str
):
    case = Case(family, tied=False, shape=SHAPE | FAMILIES[family], adapted=False)
    folder = save(case, tiny_model_dir, tmp_path)
    placement = {"num_devices": 2, "rollout_devices": 1, "threads_per_device": 1}
    with running(recipe(folder, placement=placement)) as trainer:
        trainer.sync_weights()
        said = [agree(trainer)]
        for _ in range(3):
            metrics, _ = trainer.step()
            assert 0.0 <= metrics["delta_log_prob_max"] < TOLERANCE
        trainer.sync_weights()
        said.append(agree(trainer))
        assert said[0] != said[1]
        engine_of(trainer).tamper(TAMPERED)
        with pytest.raises(
            WeightMismatch, match=r"first \S+experts\.0\.\S+ to \S+experts\.3\.\S+;"
        ):
            trainer.step()
