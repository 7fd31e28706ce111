"""Part `speed`: seconds of a step by model and lengths; what training reaches of the arithmetic,
and decoding of the memory bandwidth. Each model is a process of its own, so that one which does not
fit leaves the others."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite.notebook import Notebook
from benchmarks.gpu_suite.one_part import Place
from benchmarks.gpu_suite.rates import bytes_per_s, operations_per_s
from benchmarks.gpu_suite.shapes import Case

ROOT = Path(__file__).parents[2]
CASES = (
    Case("1.1B", 128, 256),
    Case("1.1B", 128, 256, lora=True),
    Case("0.6B", 128, 256),
    Case("4B", 128, 256),
    Case("1.1B", 1024, 256),
    Case("1.1B", 128, 2048, num_prompts=4),
    Case("0.6B", 1024, 256),
    Case("0.6B", 1024, 2048, num_prompts=4),
    Case("4B", 1024, 256, num_prompts=8),
    Case("4B", 1024, 2048, num_prompts=4),
)
"""The first of each model matter most."""
DRY = (Case("dry", 16, 8, num_prompts=2, samples=2), Case("dry", 32, 8, 2, 2, lora=True))
STEPS = 3
"""Steps of a case, the first of which warms up."""
FEW = 8
"""Tokens of the rollout that is subtracted, so that the prompts' share is left out."""


def run(notebook: Notebook, place: Place) -> None:
    """Measure the two rates, then every case in order of its model's first one."""
    rates = {
        "bytes_per_s": bytes_per_s(place.device),
        "operations_per_s": operations_per_s(place.device),
    }
    notebook.add(kind="rates", **rates)
    cases = DRY if place.is_dry else CASES
    models = list(dict.fromkeys((case.shape, case.lora) for case in cases))
    for shape, lora in models:
        chosen = [n for n, case in enumerate(cases) if (case.shape, case.lora) == (shape, lora)]
        job = {
            "cases": [vars(cases[number]) for number in chosen],
            "scratch": str(place.scratch),
            "device": place.device,
            **rates,
        }
        command = [sys.executable, "-m", "benchmarks.gpu_suite.speed", json.dumps(job)]
        log = place.scratch / f"speed-{shape}.log"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    notebook.add(kind="step", **json.loads(line))
        if process.returncode:
            notebook.add(
                kind="broken", shape=shape, lora=lora, reason=log.read_text(errors="replace")[-800:]
            )


def measure_all(job: dict[str, Any]) -> None:
    """Take the steps of one model's cases; print a line of JSON for each."""
    import torch

    from benchmarks.gpu_suite.one_rank import OneRank

    scratch, device = Path(job["scratch"]), job["device"]
    cases = [Case(**sizes) for sizes in job["cases"]]
    model = OneRank(cases[0], scratch, device)
    for case in cases:
        try:
            figures = measured(model, case, job)
        except torch.OutOfMemoryError as error:
            figures = {"no_memory": str(error)[:200]}
            torch.cuda.empty_cache()
        print(json.dumps({**vars(case), **figures}), flush=True)


def measured(model: Any, case: Case, job: dict[str, Any]) -> dict[str, Any]:
    """Return medians over a case's steps, with what they reach of the two rates."""
    from dataclasses import replace

    from benchmarks.gpu import step_operations
    from benchmarks.gpu_suite.rates import bytes_of_decoding
    from benchmarks.gpu_suite.shapes import config_of

    batches = model.take(replace(case, reply=min(FEW, case.reply - 1)))
    short = [model.side.step(batches[0], number)["generate"][0] for number in range(2)][-1]
    batches = model.take(case)
    steps = [model.side.step(batches[number], 2 + number) for number in range(STEPS)][1:]
    took = {}
    for phase in ("generate", "train", "step"):
        took[phase] = statistics.median(step[phase][0] for step in steps)
    config = config_of(case.shape)
    operations = step_operations(
        config, case.num_rows, case.prompt, case.reply, is_frozen=case.lora
    )
    num_read = case.reply - min(FEW, case.reply - 1)
    decoding_s = max(took["generate"] - short, 1e-9)
    least_s = num_read * bytes_of_decoding(config, case) / job["bytes_per_s"]
    return {
        **took,
        "tokens_per_s": steps[-1]["tokens"] / took["step"],
        "train_share": operations / took["train"] / job["operations_per_s"],
        "decode_share": least_s / decoding_s,
        "ms_per_token": 1e3 * decoding_s / num_read,
        "peak_bytes": max(step["peak_bytes"] for step in steps),
    }


if __name__ == "__main__":
    measure_all(json.loads(sys.argv[1]))
