"""Parts of a training that a recipe may replace by a class from anywhere: their contracts and
registries. See README.md in this folder."""

from rl_core.parts.backend import Averages, Backend, Probes
from rl_core.parts.bundle import Family
from rl_core.parts.engine import Receives, Samples
from rl_core.parts.registry import PartRegistry
from rl_core.parts.stack import Stack
from rl_core.parts.sync import Sync
from rl_core.parts.trainer import Loop

__all__ = [
    "Averages",
    "Backend",
    "Family",
    "Loop",
    "PartRegistry",
    "Probes",
    "Receives",
    "Samples",
    "Stack",
    "Sync",
    "backends",
    "bundles",
    "engines",
    "stacks",
    "syncs",
    "trainers",
]

bundles = PartRegistry("bundle", Family)
backends = PartRegistry("backend", Backend, {"fsdp": "rl_core.train.fsdp:FSDPBackend"}, "fsdp")
stacks = PartRegistry("stack", Stack)
engines = PartRegistry("engine", Samples)
syncs = PartRegistry("sync", Sync)
trainers = PartRegistry("trainer", Loop)
