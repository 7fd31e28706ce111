"""What the ranks of these tests do: build a backend, train some steps, say what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_core.algorithms import algorithms
from rl_core.data_proto import DataProto
from rl_core.models.bundle import ModelBundle
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.result import TrainStepResult
from rl_core.train.stacks.token_stack import TrainStack
from schemas.recipe import (
    EmaFullConfig,
    EmaLoraConfig,
    FSDPConfig,
    LoraConfig,
    LrSchedulerConfig,
    ModelConfig,
    OptimizerConfig,
)

LORA = LoraConfig(rank=4, alpha=8)
WITH_KL = {"name": "grpo", "kl": {"coef": 0.1}}
"""An algorithm that needs a reference."""
NUM_PROMPT, NUM_RESPONSE = 6, 5


@dataclass(frozen=True)
class Setup:
    """Everything a job needs to build its backend and stack."""

    model_dir: str
    fsdp: dict[str, Any] = field(default_factory=dict)
    """Changes to an FSDPConfig in float32."""
    lora: LoraConfig | None = None
    ema: EmaLoraConfig | EmaFullConfig | None = None
    scheduler: LrSchedulerConfig = field(default_factory=LrSchedulerConfig)
    optimizer: dict[str, Any] = field(default_factory=dict)
    """Changes to the optimizer."""
    stack: dict[str, Any] = field(default_factory=dict)
    """Changes to a TrainStack with micro-batches of two rows."""
    algorithm: dict[str, Any] = field(default_factory=lambda: {"name": "grpo"})
    num_rows: int = 8


def make_bundle(model_dir: str) -> ModelBundle:
    return ModelBundle(model_dir, ModelConfig(path=model_dir))


def make_backend(
    rank_info: RankInfo,
    setup: Setup,
    *,
    with_reference: bool = False,
    bundle: ModelBundle | None = None,
) -> FSDPBackend:
    return FSDPBackend(
        bundle or make_bundle(setup.model_dir),
        FSDPConfig.model_validate({"param_dtype": "float32", **setup.fsdp}),
        # Adam divides by the gradient's own size; a larger eps keeps rounding noise in near-zero
        # gradients small.
        OptimizerConfig.model_validate(
            {"learning_rate": 1e-3, "eps": 1e-4, "weight_decay": 0.01, **setup.optimizer}
        ),
        setup.scheduler,
        setup.lora,
        ema_cfg=setup.ema,
        total_steps=6,
        seed=0,
        with_reference=with_reference,
        rank_info=rank_info,
    )


def make_stack(backend: FSDPBackend, setup: Setup) -> TrainStack:
    algorithm_cls, config = algorithms.resolve(setup.algorithm, "algorithm")
    return TrainStack(backend, algorithm_cls(config), **{"micro_batch_size": 2, **setup.stack})


def make_both(
    rank_info: RankInfo, setup: Setup, bundle: ModelBundle | None = None
) -> tuple[FSDPBackend, TrainStack]:
    algorithm_cls, config = algorithms.resolve(setup.algorithm, "algorithm")
    needs_reference = algorithm_cls(config).needs_reference
    backend = make_backend(rank_info, setup, with_reference=needs_reference, bundle=bundle)
    return backend, make_stack(backend, setup)


def batch(seed: int, num_rows: int = 8) -> DataProto:
    """Ragged rows as a rollout gives them, with advantages."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, NUM_RESPONSE + 1, (num_rows,), generator=generator)
    prompt_lengths = torch.randint(2, NUM_PROMPT + 1, (num_rows,), generator=generator)
    mask = (torch.arange(NUM_RESPONSE)[None] < lengths[:, None]).long()
    prompt_mask = (torch.arange(NUM_PROMPT)[None] >= NUM_PROMPT - prompt_lengths[:, None]).long()
    attention = torch.cat([prompt_mask, mask], 1)
    ids = torch.randint(3, 20, (num_rows, NUM_PROMPT + NUM_RESPONSE), generator=generator)
    return DataProto.from_dict(
        {
            "input_ids": ids * attention,
            "attention_mask": attention,
            "position_ids": (attention.cumsum(-1) - 1).clamp_min(0),
            "response_mask": mask,
            "rollout_log_probs": torch.full((num_rows, NUM_RESPONSE), -3.0) * mask,
            "advantages": torch.randn(num_rows, 1, generator=generator) * mask,
        }
    )


def shard_of(rank_info: RankInfo, whole: DataProto) -> DataProto:
    """This rank's rows; uneven shares are allowed."""
    rows = np.array_split(np.arange(len(whole)), rank_info.world_size)[rank_info.rank]
    return whole[rows]


def train_steps(
    stack: TrainStack, rank_info: RankInfo, steps: range | list[int], num_rows: int = 8
) -> list[TrainStepResult]:
    return [stack.train(shard_of(rank_info, batch(step, num_rows))) for step in steps]


def train(
    rank_info: RankInfo, setup: Setup, steps: list[int]
) -> tuple[dict[str, Tensor], list[TrainStepResult]]:
    """The trained weights (rank 0 only) and what each step said."""
    backend, stack = make_both(rank_info, setup)
    results = train_steps(stack, rank_info, steps, setup.num_rows)
    return backend.full_state(), results


def log_probs(policy: Any, rows: DataProto) -> Tensor:
    """[B, T] of a policy on a batch."""
    names = ("input_ids", "attention_mask", "position_ids", "response_mask")
    with torch.no_grad():
        return policy(*(rows.tensor(name) for name in names))[0]


def largest_difference(one: dict[str, Tensor], two: dict[str, Tensor]) -> float:
    assert one.keys() == two.keys() and one
    return max(float((one[name].float() - two[name].float()).abs().max()) for name in one)


def same_bits(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    assert one.keys() == two.keys() and one
    return all(torch.equal(one[name], two[name]) for name in one)
