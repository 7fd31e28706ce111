"""Preparation stages, one file each, with their inputs and build steps. `rl_core.data.prepare.job`
does the rest.

| stage | from | to |
|---|---|---|
| `mpo` | MMPR: meta, annotations, images | `MMPR-v1.2/` |
| `vision` | MMPR-Tiny: Parquet, images | `mmpr_tiny.parquet`, `MMPR-Tiny/images/` |
| `text` | a blend of response rows, some of them placeholders | `train/`, `val/`, `manifest.json` |
| `diffusion` | prompt files with condition images | `prompts.jsonl`, `images/`, `manifest.json` |
"""

from typing import Any

from rl_core.data.stages.base import Stage
from rl_core.runtime.registry import Registry

stages: Registry[Stage[Any]] = Registry("preparation stage", "rl_core.data.stages")
