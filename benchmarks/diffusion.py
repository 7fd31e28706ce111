"""`make bench-diffusion`: our sampler compared with a plain diffusers pipeline, the cost of
log-probabilities, and training.

The model is the embedded one before its warm-up, which does the same work. All samplers take turns,
with the same prompts, noise, schedule and guidance, and none decodes. One rank, without Ray. On a
CPU, seconds are the process's own CPU time on one thread, which other load does not lengthen; on a
GPU they are wall-clock time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from rl_core.algorithms import algorithms
from rl_core.builtin.models.tiny_sd3 import make_pipeline
from rl_core.data_proto import DataProto
from rl_core.models.diffusion.bundle import DiffusionBundle, load_family
from rl_core.models.diffusion.levels import noise_levels
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.diffusion.engine import DiffusionEngine
from rl_core.sde import action_steps, initial_noise
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stacks.diffusion_stack import StepStack
from rl_core.trainers.track import prompt_batch
from schemas.recipe import FSDPConfig, LrSchedulerConfig, ModelConfig, OptimizerConfig
from schemas.sections.diffusion import DiffusionConfig
from schemas.sections.rollout import RolloutConfig

CONFIG = DiffusionConfig(height=32, width=32, num_steps=10, eval_steps=10, guidance_scale=3.0)
NUM_SIBLINGS = 8


def build(folder: str, device: str, *, checkpointing: bool) -> tuple[DiffusionEngine, StepStack]:
    """Build engine and stack over one backend."""
    algorithm_cls, settings = algorithms.resolve(
        {"name": "flow_grpo", "kl": {"coef": 0.0}}, "algorithm"
    )
    backend = FSDPBackend(
        DiffusionBundle(folder, ModelConfig(path=folder)),
        FSDPConfig.model_validate(
            {"param_dtype": "float32", "activation_checkpointing": checkpointing}
        ),
        OptimizerConfig(),
        LrSchedulerConfig(),
        None,
        total_steps=1000,
        seed=0,
        with_reference=False,
        rank_info=RankInfo(0, 1, device, 1),
    )
    rollout = RolloutConfig(samples_per_prompt=NUM_SIBLINGS, max_batch_size=256)
    engine = DiffusionEngine(backend, CONFIG, rollout, settings.sde, 0, 256)
    return engine, StepStack(
        backend, algorithm_cls(settings), CONFIG, settings.sde, micro_batch_size=16
    )


def samplers(
    engine: DiffusionEngine, folder: str, num_samples: int
) -> dict[str, Callable[[], object]]:
    """Return the samplers to compare; the plain pipeline has its own, unsharded weights."""
    items = []
    for digit in range(num_samples):
        items.append({"prompt": f"a photo of the digit {digit % 10}", "uid": str(digit)})
    jobs = engine.jobs_of(items)
    pipeline = load_family(folder, folder).pipeline.to(engine.backend.device)
    pipeline.transformer.eval()
    levels = noise_levels(engine.family, CONFIG, CONFIG.num_steps)
    noise = initial_noise([job.start for job in jobs], engine.latent_shape).to(
        engine.backend.device
    )
    actions = action_steps(engine.sde, CONFIG.num_steps, 0)  # type: ignore[arg-type]

    def plain() -> object:
        return pipeline(
            [item["prompt"] for item in items],
            height=CONFIG.height,
            width=CONFIG.width,
            sigmas=levels[:-1].tolist(),
            num_inference_steps=CONFIG.num_steps,
            guidance_scale=CONFIG.guidance_scale,
            latents=noise.clone(),
            max_sequence_length=pipeline.tokenizer_max_length,
            output_type="latent",
        ).images

    def ours(chosen: tuple[int, ...]) -> object:
        with engine.backend.gathered() as policy:
            return engine.sample(policy, engine.jobs_of(items), levels, chosen, num_samples)

    ode, sde = (lambda: ours(())), (lambda: ours(actions))
    return {"diffusers pipeline": plain, "ours, no actions": ode, "ours, all actions": sde}


def best_of(
    calls: Mapping[str, Callable[[], object]], repeats: int, device: str
) -> dict[str, float]:
    """Return the minimum seconds of each call over several turns."""
    clock = time.process_time if device == "cpu" else _synchronised
    for call in calls.values():
        call()
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            call()
            best[name] = min(best[name], clock() - start)
    return best


def _synchronised() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def training_rows(engine: DiffusionEngine) -> DataProto:
    """Return a rollout with random advantages."""
    prompts = prompt_batch(
        [{"prompt": f"the digit {digit}", "uid": str(digit)} for digit in range(4)]
    )
    rollout = engine.rollout(prompts, 0)
    assert rollout is not None and rollout.batch is not None
    shape = rollout.tensor("response_mask").shape
    rollout.batch["advantages"] = torch.randn(
        shape[0], 1, generator=torch.Generator().manual_seed(0)
    ).expand(shape)
    return rollout


def kept_bytes(stack: StepStack, rows: DataProto) -> int:
    """Return the most bytes that the forward passes of a step save for their backward passes,
    without parameters."""
    seen: dict[int, int] = {}
    most = 0

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if not isinstance(tensor if tensor._base is None else tensor._base, torch.nn.Parameter):
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    backward = stack.backend.backward

    def measured(loss: torch.Tensor, *, last: bool) -> None:
        nonlocal most
        most = max(most, sum(seen.values()))
        seen.clear()
        backward(loss, last=last)
        seen.clear()

    stack.backend.backward = measured  # type: ignore[method-assign]
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        stack.train(rows)
    stack.backend.backward = backward  # type: ignore[method-assign]
    return most


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        store = Path(scratch) / "store"
        dist.init_process_group("gloo", store.as_uri(), rank=0, world_size=1)
        folder = str(Path(scratch) / "model")
        pipeline = make_pipeline()
        # A fresh last layer is zero: give the sampler something to follow.
        torch.nn.init.normal_(pipeline.transformer.proj_out.weight, std=0.1)
        pipeline.save_pretrained(folder)
        try:
            compare(folder, arguments)
        finally:
            dist.destroy_process_group()


def compare(folder: str, arguments: argparse.Namespace) -> None:
    """Compare sampling, then training with and without activation checkpointing."""
    engine, stack = build(folder, arguments.device, checkpointing=False)
    best = best_of(samplers(engine, folder, arguments.samples), arguments.repeats, arguments.device)
    print(
        f"{arguments.samples} samples, {CONFIG.num_steps} steps, guidance {CONFIG.guidance_scale:g}"
    )
    for name, seconds in best.items():
        print(f"  {name:20} {arguments.samples / seconds:8.1f} samples/s")
    share = 1 - best["ours, no actions"] / best["ours, all actions"]
    print(f"  noise and log-probabilities of all steps: {share:.1%} of sampling")
    for checkpointing in (False, True):
        if checkpointing:
            engine, stack = build(folder, arguments.device, checkpointing=True)
        rows = training_rows(engine)
        calls = {"train": lambda stack=stack, rows=rows: stack.train(rows)}
        seconds = best_of(calls, arguments.repeats, arguments.device)["train"]
        kept = kept_bytes(stack, rows) / 2**20
        word = "with" if checkpointing else "without"
        speed = f"{1 / seconds:.2f} steps/s of {len(rows)} rows"
        print(
            f"  training {word} activation checkpointing: {speed}, {kept:.1f} MiB kept for the "
            "backward pass"
        )


if __name__ == "__main__":
    main()
