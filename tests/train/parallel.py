"""Jobs that train one batch on several ranks by topology, and the tiny models they train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl_core.models.causal_lm import load_policy
from rl_core.ranks.rank_info import RankInfo, TrainTopology
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.result import TrainStepResult
from schemas.recipe import LoraConfig, ModelConfig
from tests.train.jobs import Setup, batch, log_probs, make_backend, make_both, make_stack

STEPS = [0, 1]
"""The second step is the first that reads what the optimiser keeps."""
LORA = LoraConfig(rank=4, alpha=8)


def copy_of(model_dir: Path, folder: Path, family: str, **changes: Any) -> Path:
    """A tiny random model of a transformers family, with the tokenizer of another."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    base = AutoConfig.from_pretrained(model_dir).to_dict()
    kept = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
    )
    shape = (
        {name: base[name] for name in kept}
        | {"head_dim": 8, "pad_token_id": base["pad_token_id"]}
        | changes
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(model_dir).save_pretrained(folder)
    return folder


def build(rank_info: RankInfo, topology: TrainTopology, setup: Setup) -> tuple[FSDPBackend, Any]:
    return make_both(replace(rank_info, topology=topology), setup)


def train(
    rank_info: RankInfo, topology: TrainTopology, setup: Setup, steps: list[int]
) -> tuple[dict[str, Tensor], list[TrainStepResult]]:
    """The trained weights (rank 0 only) and what each step said; ranks of one replica get the same
    rows."""
    backend, stack = build(rank_info, topology, setup)
    results = [stack.train(rows_of(backend, batch(step))) for step in steps]
    return backend.full_state(), results


def reference_log_probs(rank_info: RankInfo, topology: TrainTopology, setup: Setup) -> Tensor:
    """Of the policy before training, after a step of it."""
    backend = make_backend(replace(rank_info, topology=topology), setup, with_reference=True)
    make_stack(backend, setup).train(batch(0))
    with backend.reference_policy() as reference:
        return log_probs(reference, batch(9))


def local_shapes(
    rank_info: RankInfo, topology: TrainTopology, setup: Setup
) -> dict[str, tuple[int, ...]]:
    """What one rank holds of each parameter of the first block and of the embedding."""
    backend, _ = build(rank_info, topology, setup)
    tensors: dict[str, Any] = dict(backend.policy.named_parameters())
    return {
        name.rsplit("model.", 1)[-1].removeprefix("layers.0."): tuple(value.to_local().shape)
        for name, value in tensors.items()
        if "layers.1" not in name
    }


def rows_of(backend: FSDPBackend, whole: Any) -> Any:
    info = backend.rank_info
    size = len(whole) // info.dp_size
    return whole[info.dp_rank * size : (info.dp_rank + 1) * size]


def save(
    rank_info: RankInfo, topology: TrainTopology, setup: Setup, folder: str, exported: str
) -> dict[str, Tensor]:
    """A step, then a checkpoint and an export."""
    backend, stack = build(rank_info, topology, setup)
    for step in STEPS[:1]:
        stack.train(rows_of(backend, batch(step)))
    backend.save(folder)
    backend.export(exported)
    return backend.full_state()


def load(
    rank_info: RankInfo, topology: TrainTopology, setup: Setup, folder: str
) -> dict[str, Tensor]:
    """A checkpoint, then the other step."""
    backend, stack = build(rank_info, topology, setup)
    backend.load(folder)
    for step in STEPS[1:]:
        stack.train(rows_of(backend, batch(step)))
    return backend.full_state()


def log_probs_of(folder: str) -> Tensor:
    return log_probs(load_policy(folder, ModelConfig(path=folder)).eval(), batch(9))
