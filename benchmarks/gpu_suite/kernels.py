"""Part `kernels`: a profile of one step's phases, by kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_suite.notebook import Notebook
from benchmarks.gpu_suite.one_part import Place
from benchmarks.gpu_suite.one_rank import OneRank
from benchmarks.gpu_suite.rates import settle
from benchmarks.gpu_suite.shapes import Case
from rl_core.trainers.advantages import add_advantages
from rl_core.trainers.track import prompt_batch

CASE = Case("1.1B", 128, 128)
DRY = Case("dry", 16, 8, num_prompts=2, samples=2)
NUM_NAMED = 20


def run(notebook: Notebook, place: Place) -> None:
    """Warm up with a step, then profile the two phases of the next one, each by itself."""
    case = DRY if place.is_dry else CASE
    model = OneRank(case, place.scratch, place.device)
    batches, side = model.take(case), model.side
    side.step(batches[0], 0)
    activities = [ProfilerActivity.CPU]
    if place.device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as sampling:
        rollout = side.engine.rollout(prompt_batch(batches[1]), 1)
        settle(place.device)
    notebook.add(phase="generate", kernels=by_time(sampling, place.device))
    assert rollout is not None
    groups = torch.arange(case.num_prompts).repeat_interleave(case.samples)
    add_advantages(side.algorithm, rollout, groups)
    with profile(activities=activities) as training:
        side.stack.train(rollout)
        settle(place.device)
    notebook.add(phase="train", kernels=by_time(training, place.device))


def by_time(profiled: profile, device: str) -> list[dict[str, Any]]:
    """Return the kernels that took longest on the device, with milliseconds, calls and shares."""
    key = "self_device_time_total" if device == "cuda" else "self_cpu_time_total"
    averages = sorted(profiled.key_averages(), key=lambda one: getattr(one, key), reverse=True)
    whole = sum(getattr(one, key) for one in averages) or 1
    kernels = []
    for one in averages[:NUM_NAMED]:
        took = getattr(one, key)
        kernels.append(
            {"name": one.key[:120], "ms": took / 1e3, "calls": one.count, "share": took / whole}
        )
    return kernels
