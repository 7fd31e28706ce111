"""What ranks do in the tests of the unified model: write by hand, draw, train both stages, say what
came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rl_core.algorithms import algorithms
from rl_core.algorithms.diffusion_nft import DiffusionNft
from rl_core.data_proto import DataProto, pad_rows
from rl_core.models.decoding.decode import positions_of
from rl_core.models.diffusion.levels import size_of
from rl_core.models.unified.bundle import UnifiedBundle
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.diffusion.unified_plans import PlanPainter, contexts, planned_drawing
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.gradients import clip_gradients
from rl_core.train.stacks.diffusion_stack import DiffusionStack, StepStack
from rl_core.train.stacks.nft_stack import NftStack
from rl_core.train.stacks.token_stack import TrainStack
from rl_core.train.stacks.unified_stack import StageWeight, UnifiedStack
from rl_core.trainers.advantages import add_advantages
from rl_core.trainers.track import prompt_batch
from schemas.recipe import FSDPConfig, LoraConfig, LrSchedulerConfig, ModelConfig, OptimizerConfig
from schemas.sections.diffusion import DiffusionConfig
from schemas.sections.rollout import RolloutConfig

TEXT, IMAGES = "text", "images"
LORA = LoraConfig(rank=4, alpha=8)
NUM_PICTURES = 2
WRITTEN = (
    ("siete", "the digit seven"),
    ("3 + 4", "the digit one"),
    ("V", "five"),
    ("onne", "the digit one two"),
)
"""Prompts and what was planned for them."""


@dataclass(frozen=True)
class Setup:
    """Everything a job needs."""

    model_dir: str
    weights: dict[str, StageWeight] = field(
        default_factory=lambda: {TEXT: StageWeight(0.5), IMAGES: StageWeight(2.0)}
    )
    diffusion: dict[str, Any] = field(default_factory=dict)
    """Changes to 4 steps of 32 x 32 pixels."""
    algorithms: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Changes to GRPO and Flow-GRPO without a KL."""
    lora: LoraConfig | None = None
    stack: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Made:
    """One rank's parts."""

    rank_info: RankInfo
    backend: FSDPBackend
    painter: PlanPainter
    text: TrainStack
    images: DiffusionStack
    stack: UnifiedStack


def make_all(rank_info: RankInfo, setup: Setup) -> Made:
    own = {"name": "grpo", "std_scope": "group"}
    named: dict[str, dict[str, Any]] = {
        TEXT: {"name": "grpo"},
        IMAGES: {"name": "flow_grpo", "kl": {"coef": 0.0}},
    }
    if "name" in setup.algorithms.get(IMAGES, {}):
        named[IMAGES] = {}
    # Ranks are alone with their groups here, so advantages may not look at the whole batch.
    named[IMAGES]["advantage"] = own
    found = {
        name: algorithms.resolve(one | setup.algorithms.get(name, {}), name)
        for name, one in named.items()
    }
    text, images = (algorithm_cls(settings) for algorithm_cls, settings in found.values())
    config = DiffusionConfig(
        **{"height": 32, "width": 32, "num_steps": 4, "eval_steps": 3, **setup.diffusion}
    )
    backend = FSDPBackend(
        UnifiedBundle(setup.model_dir, ModelConfig(path=setup.model_dir), size_of(config)),
        FSDPConfig.model_validate({"param_dtype": "float32"}),
        OptimizerConfig(learning_rate=1e-3, eps=1e-4),
        LrSchedulerConfig(),
        setup.lora,
        total_steps=6,
        seed=0,
        with_reference=text.needs_reference or images.needs_reference,
        rank_info=rank_info,
    )
    rollout, sde = RolloutConfig(samples_per_prompt=NUM_PICTURES), None
    options = {"micro_batch_size": 3, **setup.stack}
    if isinstance(images, DiffusionNft):
        drawing: DiffusionStack = NftStack(backend, images, config, **options)
    else:
        sde = images.config.sde
        drawing = StepStack(backend, images, config, sde, **options)
    painter = PlanPainter(backend, config, rollout, sde, 0, 8)
    stacks = TrainStack(backend, text, **options), drawing
    return Made(rank_info, backend, painter, *stacks, UnifiedStack(backend, *stacks, setup.weights))


def rows_of(made: Made) -> dict[str, DataProto]:
    """This rank's part of a rollout that was written by hand and drawn by the model, with
    advantages."""
    size = len(WRITTEN) // made.rank_info.world_size
    first = made.rank_info.rank * size
    text = written(made.backend.bundle)[list(range(first, first + size))]
    plans = [" ".join(WRITTEN[first + row]) for row in range(size)]
    drawings = [
        planned_drawing(
            {"prompt": WRITTEN[first + row][0]}, f"plan-{first + row}", plans[row], context
        )
        for row, context in enumerate(contexts(text))
    ]
    images = made.painter.rollout(prompt_batch(drawings), 0)
    assert images is not None and images.batch is not None
    # Judged by what was sampled: pictures have whole numbers, whose rounding would tell ranks
    # apart.
    noised = "clean" in images.batch
    drawn = images.tensor("clean") if noised else images.tensor("next_latents")[:, -1]
    images.batch["rewards"] = drawn.flatten(1).mean(1)
    add_advantages(made.images.algorithm, images, torch.arange(len(images)) // NUM_PICTURES)
    return {TEXT: text, IMAGES: images}


def written(bundle: UnifiedBundle) -> DataProto:
    """A text rollout as if it had been sampled, with advantages; plans that are laid out have codes
    drawn by lot."""
    tokenizer, generator = bundle.tokenizer, torch.Generator().manual_seed(0)
    turns = [[{"role": "user", "content": prompt}] for prompt, _ in WRITTEN]
    asked = [
        torch.tensor(bundle.family.question(tokenizer, turn, bundle.size, {})) for turn in turns
    ]
    if (layout := bundle.policy.layout) is None:
        plans = [
            torch.tensor([*tokenizer(plan)["input_ids"], tokenizer.eos_token_id])
            for _, plan in WRITTEN
        ]
    else:
        plans = list(
            torch.randint(layout.num_codes, (len(WRITTEN), layout.num_tokens), generator=generator)
        )
    pad = tokenizer.pad_token_id
    ones = [[torch.ones(len(ids)).long() for ids in rows] for rows in (asked, plans)]
    mask_BT = pad_rows(ones[1], 0)
    attention_BL = torch.cat([pad_rows(ones[0], 0, left=True), mask_BT], 1)
    generator.manual_seed(0)
    return DataProto.from_dict(
        {
            "input_ids": torch.cat([pad_rows(asked, pad, left=True), pad_rows(plans, pad)], 1),
            "attention_mask": attention_BL,
            "position_ids": positions_of(attention_BL),
            "response_mask": mask_BT,
            "advantages": torch.randn(len(WRITTEN), 1, generator=generator) * mask_BT,
        }
    )


def joint_step(made: Made, *stages: str) -> dict[str, dict[str, float]]:
    """One step of some stages."""
    rows = rows_of(made)
    for name in stages:
        made.stack.receive(rows[name], name)
    return made.stack.train().to_floats()


def gradient(
    rank_info: RankInfo, setup: Setup, *stages: str
) -> tuple[dict[str, Tensor], dict[str, dict[str, float]]]:
    """What a joint step of some stages would move the weights by, and its metrics."""
    made = make_all(rank_info, setup)
    found: dict[str, Tensor] = {}
    made.backend.optimizer_step = lambda max_grad_norm: _kept(made.backend, found)
    return found, joint_step(made, *stages)


def gradient_apart(rank_info: RankInfo, setup: Setup, stage: str) -> dict[str, Tensor]:
    """The same of one stage by its own stack, unweighted."""
    made = make_all(rank_info, setup)
    found: dict[str, Tensor] = {}
    made.backend.optimizer_step = lambda max_grad_norm: _kept(made.backend, found)
    (made.text if stage == TEXT else made.images).train(rows_of(made)[stage])
    return found


def _kept(backend: FSDPBackend, found: dict[str, Tensor]) -> dict[str, float]:
    for name, parameter in backend.trainable.items():
        gradient: Any = parameter.grad
        if gradient is not None:
            found[name] = gradient.full_tensor().clone()
    norm = clip_gradients(backend.trainable.values(), float("inf"), backend.device)
    backend.zero_grad()
    return {"grad_norm": norm, "lr": 0.0, "skipped": 0.0}


def train(
    rank_info: RankInfo, setup: Setup
) -> tuple[dict[str, Tensor], dict[str, dict[str, float]]]:
    """The trained weights (rank 0 only) after two steps, and the metrics of the last."""
    made = make_all(rank_info, setup)
    joint_step(made, IMAGES, TEXT)
    metrics = joint_step(made, IMAGES, TEXT)
    return made.backend.full_state(), metrics


def replayed(rank_info: RankInfo, setup: Setup) -> tuple[Tensor, Tensor]:
    """Log-probabilities of drawing as sampled, and as the stack scores them with the decoder's
    states made anew."""
    made = make_all(rank_info, setup)
    images = rows_of(made)[IMAGES]
    assert isinstance(made.images, StepStack)
    step = made.images.replay(made.backend.policy, images)
    assert step.log_prob is not None
    return images.tensor("rollout_log_probs"), step.log_prob.detach().view_as(
        images.tensor("response_mask")
    )


def save(
    rank_info: RankInfo, setup: Setup, folder: str, exported: str
) -> tuple[dict[str, Tensor], Tensor]:
    """Two steps with a checkpoint after the first; weights, and a picture of the end, which is
    exported."""
    made = make_all(rank_info, setup)
    joint_step(made, IMAGES, TEXT)
    made.backend.save(folder)
    joint_step(made, IMAGES, TEXT)
    made.backend.export(exported)
    return made.backend.full_state(), picture(made)


def load(rank_info: RankInfo, setup: Setup, folder: str) -> dict[str, Tensor]:
    """The second of these steps, from the checkpoint."""
    made = make_all(rank_info, setup)
    made.backend.load(folder)
    joint_step(made, IMAGES, TEXT)
    return made.backend.full_state()


def untrained_picture(rank_info: RankInfo, setup: Setup) -> Tensor:
    """A picture of the model as it is loaded."""
    return picture(make_all(rank_info, setup))


def picture(made: Made) -> Tensor:
    """Latents of the first plan, from noise that is always the same, before they become whole
    numbers."""
    text = written(made.backend.bundle)
    item = planned_drawing({"prompt": WRITTEN[0][0]}, "plan", WRITTEN[0][1], contexts(text)[0])
    with made.backend.gathered() as policy:
        jobs = made.painter.jobs_of([item])
        return made.painter.sample(policy, jobs, torch.tensor([1.0, 0.5, 0.0]), (), 1)[0].clean
