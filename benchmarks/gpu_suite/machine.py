"""Part `machine`: device, versions, what `rl-train doctor` finds, and the two rates that limit
everything else."""

from __future__ import annotations

import os
import platform
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from benchmarks.gpu_suite.notebook import Notebook
from benchmarks.gpu_suite.one_part import Place

PACKAGES = ("torch", "transformers", "peft", "tensordict", "ray", "prefect", "trl", "triton")


def run(notebook: Notebook, place: Place) -> None:
    """Note the machine, its rates and the doctor's findings."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "missing"
    name = "the processor" if place.is_dry else torch.cuda.get_device_name()
    notebook.add(
        kind="machine",
        device=name,
        python=platform.python_version(),
        cores=len(os.sched_getaffinity(0)),
        versions=versions,
    )
    from benchmarks.gpu_suite.rates import bytes_per_s, operations_per_s

    notebook.add(
        kind="rates",
        bytes_per_s=bytes_per_s(place.device),
        operations_per_s=operations_per_s(place.device),
    )
    from rl_core.doctor.examination import examine
    from rl_core.runtime.home import Home

    with tempfile.TemporaryDirectory(dir=place.scratch) as folder:
        for finding in examine(Home(Path(folder))):
            notebook.add(
                kind="doctor",
                name=f"{finding.area}: {finding.name}",
                level=finding.level.value,
                found=finding.found,
            )
