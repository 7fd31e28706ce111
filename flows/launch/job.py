"""The job that a launcher starts: one run, on a number of equal machines."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

RAY_PORT = 6379
WAIT_S = 900
"""Seconds that the run waits for machines that are still starting."""


@dataclass(frozen=True)
class Job:
    """One run on a number of equal machines."""

    recipe: str
    overrides: tuple[str, ...]
    nodes: int
    devices: int
    """Devices of each machine."""
    device_kind: str
    storage: str | None

    @property
    def name(self) -> str:
        """Name for the scheduler: letters, digits and dashes."""
        stem = self.recipe.rsplit("/", 1)[-1].removesuffix(".yaml").removesuffix(".yml")
        kept = "".join(one if one.isalnum() else "-" for one in stem.lower()).strip("-")
        return f"rl-train-{kept or 'run'}"[:40].rstrip("-")

    def command(self, address: str) -> str:
        """Return the shell command of the run. Args: address: of the Ray cluster, as the shell
        reads it; not quoted."""
        placed = {
            "device": self.device_kind,
            "num_devices": self.nodes * self.devices,
            "devices_per_node": self.devices,
            "wait_for_nodes_s": WAIT_S,
        }
        words = [f"placement.{key}={value}" for key, value in placed.items()]
        words += [] if self.storage is None else [f"placement.storage={self.storage}"]
        words += self.overrides
        quoted = " ".join(shlex.quote(word) for word in words)
        recipe = shlex.quote(self.recipe)
        return f"rl-train run {recipe} {quoted} placement.ray_address={address}"

    @property
    def gpus(self) -> int:
        """GPUs of each machine."""
        return self.devices if self.device_kind == "cuda" else 0
