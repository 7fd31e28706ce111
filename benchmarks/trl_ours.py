"""Our side of `make bench-trl`: backend, rollout engine and stack of the recipe `text`, in one process.

Takes and gives what `trl_peer` does: a line on standard input is a step, its figures a line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rl_core.algorithms import algorithms
from rl_core.data.prompt_items import ItemMaker
from rl_core.models.bundle import ModelBundle
from rl_core.rank_info import RankInfo
from rl_core.recipes import load_recipe
from rl_core.rollout.engine import RolloutEngine
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stack import TrainStack
from rl_core.trainers.base import add_advantages, prompt_batch
from rl_core.trainers.wiring import stack_options
from schemas.recipe import Recipe


class Forced(RolloutEngine):
    """Nothing ends a reply but its limit."""

    def _eos_ids(self) -> tuple[int, ...]:
        return (-1,)


class Clock:
    """Seconds of the wall and of the processor since it was made."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> list[float]:
        return [time.perf_counter() - self.wall, time.process_time() - self.cpu]


def recipe_of(settings: dict[str, Any]) -> Recipe:
    """The recipe `text` with the bench's sizes; what it does not set is what a user gets."""
    adapters = settings["lora"] and {"rank": settings["lora"]["r"], "alpha": settings["lora"]["lora_alpha"]}
    is_narrow = settings["autocast"] or settings["weights"] == "bfloat16"
    overrides = [
        f"rollout.max_new_tokens={settings['new_tokens']}",
        f"rollout.samples_per_prompt={settings['samples']}",
        f"training.prompts_per_step={settings['num_prompts']}",
        f"optimizer.learning_rate={settings['learning_rate']}",
        "scheduler.kind=constant",
        f"seed={settings['seed']}",
        f"fsdp.param_dtype={'bfloat16' if is_narrow else 'float32'}",
        f"fsdp.master_dtype={settings['weights']}",
        f"lora={json.dumps(adapters)}",
        *settings["overrides"],
    ]
    return load_recipe("text", overrides)


class Side:
    """Everything of one worker."""

    def __init__(self, recipe: Recipe, source: str, *, forced: bool) -> None:
        algorithm_cls, config = algorithms.resolve(recipe.algorithm, "algorithm")
        self.algorithm = algorithm_cls(config)
        self.backend = FSDPBackend(
            ModelBundle(source, recipe.model),
            recipe.fsdp,
            recipe.optimizer,
            recipe.scheduler,
            recipe.lora,
            total_steps=1000,
            seed=recipe.seed,
            with_reference=self.algorithm.needs_reference,
            rank_info=RankInfo(0, 1, "cpu", 1),
        )
        engine_cls = Forced if forced else RolloutEngine
        self.engine = engine_cls(
            self.backend, recipe.rollout, recipe.environments, recipe.model.chat_template_kwargs, recipe.seed
        )
        self.stack = TrainStack(
            self.backend,
            self.algorithm,
            max_tokens_per_micro_batch=recipe.placement.max_tokens_per_micro_batch,
            share_prompts=recipe.placement.share_prompts,
            temperature=recipe.rollout.temperature,
            max_length=recipe.rollout.max_new_tokens,
            **stack_options(recipe),
        )

    def step(self, items: list[dict[str, Any]], number: int) -> dict[str, Any]:
        """Roll out, reward, train; what it took."""
        whole = Clock()
        rollout = self.engine.rollout(prompt_batch(items), number)
        assert rollout is not None
        generated = whole.read()
        groups = torch.arange(len(items)).repeat_interleave(len(rollout) // len(items))
        add_advantages(self.algorithm, rollout, groups)
        self.stack.train(rollout)
        took = whole.read()
        return {
            "generate": generated,
            "train": [all_of - part for all_of, part in zip(took, generated, strict=True)],
            "step": took,
            "tokens": int(rollout.tensor("num_tokens").sum()),
            "peak_bytes": peak_bytes(),
            "reward": float(rollout.tensor("rewards").mean()),
        }


def peak_bytes() -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    """Answer lines with steps until there are no more."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not for the other side
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    make = ItemMaker()
    rows = [json.loads(line) for line in Path(settings["prompts"]).read_text().splitlines()]
    items = [make(row["row"], f"row {number}") for number, row in enumerate(rows)]
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    side = Side(recipe_of(settings), settings["model"], forced=settings["forced"])
    print(json.dumps({"ready": {}}), file=out, flush=True)
    size = settings["num_prompts"]
    for number, _ in enumerate(sys.stdin):
        print(json.dumps(side.step(items[number * size : (number + 1) * size], number)), file=out, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
