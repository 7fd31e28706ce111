"""Our side of `make bench-trl` and `make bench-scaling`: backend, rollout engine and stack of the
recipe `text`.

Input and output are as in `trl_peer`: each line on standard input is a step, whose figures are
printed as a line of JSON. With `ranks`, as many processes share the prompts and the threads, and
the first one answers.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.page import JsonObject
from rl_core.algorithms import algorithms
from rl_core.data.prepare.prompt_items import ItemMaker
from rl_core.kernels import keep_freed_memory, spare_busy_cores, widen_products
from rl_core.models.bundle import ModelBundle
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.engine import RolloutEngine
from rl_core.runs.recipes import load_recipe
from rl_core.runtime.peak_memory import peak_bytes
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stacks.token_stack import TrainStack
from rl_core.trainers.advantages import add_advantages
from rl_core.trainers.track import prompt_batch
from rl_core.trainers.wiring import stack_options
from schemas.recipe import Recipe


class Forced(RolloutEngine):
    """Rollout engine whose replies end only at their length limit."""

    def _eos_ids(self) -> tuple[int, ...]:
        return (-1,)


class Clock:
    """Wall-clock and CPU seconds since its creation; it waits for pending GPU work."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> list[float]:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return [time.perf_counter() - self.wall, time.process_time() - self.cpu]


def recipe_of(settings: JsonObject) -> Recipe:
    """Return the recipe `text` with the bench's sizes, and the defaults of a user otherwise.

    If the number of tokens is fixed, all of them are trained whatever their advantages, as TRL
    does.
    """
    adapters = settings["lora"] and {
        "rank": settings["lora"]["r"],
        "alpha": settings["lora"]["lora_alpha"],
    }
    is_narrow = settings["autocast"] or settings["weights"] == "bfloat16"
    overrides = [
        f"rollout.max_new_tokens={settings['new_tokens']}",
        f"rollout.samples_per_prompt={settings['samples']}",
        f"training.prompts_per_step={settings['num_prompts']}",
        f"optimizer.learning_rate={settings['learning_rate']}",
        "scheduler.kind=constant",
        f"seed={settings['seed']}",
        f"training.skip_zero_advantages={str(not settings['forced']).lower()}",
        f"fsdp.param_dtype={'bfloat16' if is_narrow else 'float32'}",
        f"fsdp.master_dtype={settings['weights']}",
        f"lora={json.dumps(adapters)}",
        *settings["overrides"],
    ]
    profile = "one_gpu" if settings["device"] == "cuda" else "cpu"
    return load_recipe("text", overrides, profile=profile)


class Side:
    """Backend, engine and stack of one worker."""

    def __init__(self, recipe: Recipe, source: str, rank_info: RankInfo, *, forced: bool) -> None:
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
            rank_info=rank_info,
        )
        self.take_sizes(recipe, forced=forced)

    def take_sizes(self, recipe: Recipe, *, forced: bool) -> None:
        """Sample and train in the sizes of this recipe from now on. Args: forced: replies end only
        at their limit."""
        engine_cls = Forced if forced else RolloutEngine
        self.engine = engine_cls(
            self.backend,
            recipe.rollout,
            recipe.environments,
            recipe.model.chat_template_kwargs,
            recipe.seed,
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

    def step(self, items: list[JsonObject], number: int) -> JsonObject:
        """Roll out, reward and train; return the figures."""
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
            "peak_bytes": peak_bytes(self.backend.device),
            "reward": float(rollout.tensor("rewards").mean()),
        }


def serve(rank: int, settings: JsonObject, meeting: str, answers: int | None) -> None:
    """Run one rank: take a step whenever the first rank is told to, until the input ends."""
    num_ranks = settings["ranks"]
    info = RankInfo(rank, num_ranks, settings["device"], settings["threads"] // num_ranks)
    if info.device_kind == "cpu":
        keep_freed_memory()
        widen_products()
    torch.set_num_threads(info.num_threads)
    if info.device_kind == "cpu" and not settings.get("spinning", False):
        spare_busy_cores(info.num_threads)
    store = dist.FileStore(meeting, num_ranks)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group(info.collective_backend, store=store, rank=rank, world_size=num_ranks)
    make, size = ItemMaker(), settings["num_prompts"] // num_ranks
    rows = [json.loads(line) for line in Path(settings["prompts"]).read_text().splitlines()]
    items = [make(row["row"], f"row {number}") for number, row in enumerate(rows)]
    side = Side(recipe_of(settings), settings["model"], info, forced=settings["forced"])
    gc.freeze()  # as workers do
    _answer(answers, {"ready": {}})
    for number in itertools.count():
        told = [rank > 0 or bool(sys.stdin.readline())]
        dist.broadcast_object_list(told)
        if not told[0]:
            break
        start = (number * num_ranks + rank) * size
        every: list[JsonObject] = [{}] * num_ranks
        dist.all_gather_object(every, side.step(items[start : start + size], number))
        _answer(answers, _together(every))
    dist.destroy_process_group()


def _together(every: list[JsonObject]) -> JsonObject:
    """Merge the figures of all ranks: the slowest times, the sums of tokens and memory."""
    sums = {}
    for name in ("tokens", "peak_bytes"):
        sums[name] = sum(one[name] for one in every)
    times = {}
    for name in ("generate", "train", "step"):
        times[name] = max(one[name] for one in every)
    return {**times, **sums, "reward": sum(one["reward"] for one in every) / len(every)}


def _answer(descriptor: int | None, said: JsonObject) -> None:
    if descriptor is not None:
        os.write(descriptor, f"{json.dumps(said)}\n".encode())


def main() -> None:
    """Take a step for each line of standard input."""
    answers = os.dup(1)
    os.dup2(2, 1)  # what libraries print is not for the other side
    settings = {"ranks": 1} | json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        meeting = str(Path(folder) / "meeting")
        others = torch.multiprocessing.get_context("spawn")
        siblings = []
        for rank in range(1, settings["ranks"]):
            siblings.append(others.Process(target=serve, args=(rank, settings, meeting, None)))
        for sibling in siblings:
            sibling.start()
        serve(0, settings, meeting, answers)
        for sibling in siblings:
            sibling.join()


if __name__ == "__main__":
    main()
