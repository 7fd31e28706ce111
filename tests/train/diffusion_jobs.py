"""What ranks do in the tests of diffusion: sample, train, say what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rl_core.algorithms import algorithms
from rl_core.data_proto import DataProto
from rl_core.models.diffusion.bundle import DiffusionBundle
from rl_core.models.diffusion.levels import noise_levels
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.diffusion.engine import DiffusionEngine
from rl_core.sde import initial_noise
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stacks.diffusion_stack import DiffusionStack, StepStack
from rl_core.train.stacks.nft_stack import NftStack
from rl_core.trainers.advantages import add_advantages
from rl_core.trainers.track import prompt_batch
from schemas.recipe import (
    EmaLoraConfig,
    FSDPConfig,
    LoraConfig,
    LrSchedulerConfig,
    ModelConfig,
    OptimizerConfig,
)
from schemas.sections.diffusion import DiffusionConfig
from schemas.sections.rollout import RolloutConfig

LORA = LoraConfig(rank=4, alpha=8)
ROLLS_OUT = EmaLoraConfig(decay=0.5, rollout=True)
NUM_SIBLINGS = 4
DIGITS = ("zero", "one", "two", "three")


@dataclass(frozen=True)
class Setup:
    """Everything a job needs."""

    model_dir: str
    algorithm: dict[str, Any] = field(
        default_factory=lambda: {"name": "flow_grpo", "kl": {"coef": 0.0}}
    )
    diffusion: dict[str, Any] = field(default_factory=dict)
    """Changes to 4 steps of 32 x 32 pixels."""
    fsdp: dict[str, Any] = field(default_factory=dict)
    lora: LoraConfig | None = None
    ema: EmaLoraConfig | None = None
    stack: dict[str, Any] = field(default_factory=dict)
    max_batch_size: int = 64


def make_all(
    rank_info: RankInfo, setup: Setup
) -> tuple[FSDPBackend, DiffusionEngine, DiffusionStack]:
    algorithm_cls, settings = algorithms.resolve(setup.algorithm, "algorithm")
    algorithm = algorithm_cls(settings)
    config = DiffusionConfig(
        **{"height": 32, "width": 32, "num_steps": 4, "eval_steps": 3, **setup.diffusion}
    )
    backend = FSDPBackend(
        DiffusionBundle(setup.model_dir, ModelConfig(path=setup.model_dir)),
        FSDPConfig.model_validate({"param_dtype": "float32", **setup.fsdp}),
        OptimizerConfig(learning_rate=1e-3, eps=1e-4),
        LrSchedulerConfig(),
        setup.lora,
        ema_cfg=setup.ema,
        total_steps=6,
        seed=0,
        with_reference=algorithm.needs_reference,
        rank_info=rank_info,
    )
    sde = getattr(settings, "sde", None)
    rollout = RolloutConfig(samples_per_prompt=NUM_SIBLINGS, max_batch_size=setup.max_batch_size)
    engine = DiffusionEngine(backend, config, rollout, sde, seed=0, eval_batch_size=8)
    options = {"micro_batch_size": 2, **setup.stack}
    if sde is None:
        return backend, engine, NftStack(backend, algorithm, config, **options)
    return backend, engine, StepStack(backend, algorithm, config, sde, **options)


def items(num_prompts: int = 2) -> list[dict[str, Any]]:
    return [
        {"prompt": f"a photo of the digit {name}", "uid": name} for name in DIGITS[:num_prompts]
    ]


def sample(
    engine: DiffusionEngine, rank_info: RankInfo, step: int, chosen: list[dict[str, Any]]
) -> DataProto:
    """This rank's part of a rollout, judged by the mean of what was sampled: pictures have whole
    numbers, whose rounding would tell ranks apart."""
    size = len(chosen) // rank_info.world_size
    mine = chosen[rank_info.rank * size : (rank_info.rank + 1) * size]
    rollout = engine.rollout(prompt_batch(mine), step)
    assert rollout is not None and rollout.batch is not None
    columns = list(rollout.batch.keys())
    sampled = (
        rollout.tensor("clean") if "clean" in columns else rollout.tensor("next_latents")[:, -1]
    )
    rollout.batch["rewards"] = sampled.flatten(1).mean(1)
    return rollout


def rollout_of(rank_info: RankInfo, setup: Setup, num_prompts: int = 2) -> DataProto:
    """One rollout's columns, without the conditions."""
    _, engine, _ = make_all(rank_info, setup)
    found = sample(engine, rank_info, 0, items(num_prompts))
    found.non_tensor_batch.pop("conditions")
    return found


def train(
    rank_info: RankInfo, setup: Setup, num_steps: int = 2
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """The trained weights (rank 0 only) and each step's metrics. Advantages are each group's own,
    so no rank needs another's."""
    backend, engine, stack = make_all(rank_info, setup)
    metrics = [train_step(rank_info, engine, stack, step) for step in range(num_steps)]
    return backend.full_state(), metrics


def train_step(
    rank_info: RankInfo, engine: DiffusionEngine, stack: DiffusionStack, step: int
) -> dict[str, float]:
    rollout = sample(engine, rank_info, step, items())
    add_advantages(stack.algorithm, rollout, torch.arange(len(rollout)) // NUM_SIBLINGS)
    return stack.train(rollout).to_floats()


def rewards(rank_info: RankInfo, setup: Setup, num_steps: int) -> list[float]:
    """The mean reward of each step's rollout."""
    _, engine, stack = make_all(rank_info, setup)
    means = []
    for step in range(num_steps):
        rollout = sample(engine, rank_info, step, items())
        means.append(float(rollout.tensor("rewards").mean()))
        add_advantages(stack.algorithm, rollout, torch.arange(len(rollout)) // NUM_SIBLINGS)
        stack.train(rollout)
    return means


def replayed(rank_info: RankInfo, setup: Setup) -> tuple[Tensor, Tensor]:
    """Log-probabilities as sampled and as the stack scores them at the same weights, in other
    batches."""
    _, engine, stack = make_all(rank_info, setup)
    assert isinstance(stack, StepStack)
    rollout = sample(engine, rank_info, 0, items())
    scored = []
    for first in range(0, len(rollout), 3):
        micro = rollout[list(range(first, min(first + 3, len(rollout))))]
        step = stack.replay(stack.backend.policy, micro)
        assert step.log_prob is not None
        scored.append(step.log_prob.detach().view_as(micro.tensor("response_mask")))
    return rollout.tensor("rollout_log_probs"), torch.cat(scored)


def save(
    rank_info: RankInfo, setup: Setup, folder: str, exported: str | None = None
) -> dict[str, Tensor]:
    """Two steps with a checkpoint after the first."""
    backend, engine, stack = make_all(rank_info, setup)
    train_step(rank_info, engine, stack, 0)
    backend.save(folder)
    train_step(rank_info, engine, stack, 1)
    if exported is not None:
        backend.export(exported)
    return backend.full_state()


def load(rank_info: RankInfo, setup: Setup, folder: str) -> dict[str, Tensor]:
    """The second of these steps, from the checkpoint."""
    backend, engine, stack = make_all(rank_info, setup)
    backend.load(folder)
    train_step(rank_info, engine, stack, 1)
    return backend.full_state()


def with_a_bad_row(
    rank_info: RankInfo, setup: Setup, missing: str
) -> tuple[list[int], list[Any], dict[str, float]]:
    """Trained steps per row, errors and metrics of a step whose first prompt names a picture that
    is not there."""
    _, engine, stack = make_all(rank_info, setup)
    refs = [{"modality": "image", "role": "condition", "uri": missing}]
    bad, good = items()
    rollout = sample(engine, rank_info, 0, [bad | {"media_refs": refs}, good])
    add_advantages(stack.algorithm, rollout, torch.arange(len(rollout)) // NUM_SIBLINGS)
    errors = list(rollout.non_tensor_batch["error"])
    mask = rollout.tensor("response_mask").amax(1).tolist()
    return mask, errors, stack.train(rollout).to_floats()


def trained_picture(
    rank_info: RankInfo, setup: Setup, exported: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Latents drawn from some noise after training and before, and the noise; the trained model is
    exported."""
    backend, engine, stack = make_all(rank_info, setup)
    before = _latents(engine)
    for step in range(2):
        train_step(rank_info, engine, stack, step)
    backend.export(exported)
    job = engine.jobs_of(items(1))
    return _latents(engine), before, initial_noise([job[0].start], engine.latent_shape)


def _latents(engine: DiffusionEngine) -> Tensor:
    jobs = engine.jobs_of(items(1))
    levels = noise_levels(engine.family, engine.config, engine.config.eval_steps)
    with engine.backend.gathered() as policy:
        return engine.sample(policy, jobs, levels, (), 8)[0].clean
