"""Our side of a step in this process: backend, engine and stack of the recipe `text` for a case."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.gpu_suite.older_torch import name_param_groups
from benchmarks.gpu_suite.shapes import Case, settings_of
from benchmarks.trl_ours import Side, recipe_of
from rl_core.data.prepare.prompt_items import ItemMaker
from rl_core.ranks.rank_info import RankInfo

STEPS_WRITTEN = 6
"""Steps for which prompts are written; a case takes fewer."""


class OneRank:
    """A model of one shape that takes steps of several sizes.

    Args: case: the sizes to begin with. overrides: of the recipe.
    """

    def __init__(
        self, case: Case, scratch: Path, device: str, overrides: tuple[str, ...] = ()
    ) -> None:
        name_param_groups()
        self.scratch, self.device, self.overrides = scratch, device, overrides
        info = RankInfo(0, 1, device, 1 if device == "cpu" else 8)
        torch.set_num_threads(info.num_threads)
        if not dist.is_initialized():
            meeting = tempfile.mktemp(dir=scratch)
            store = dist.FileStore(meeting, 1)  # pyright: ignore[reportPrivateImportUsage]
            dist.init_process_group(info.collective_backend, store=store, rank=0, world_size=1)
        settings = self._settings(case)
        self.side = Side(recipe_of(settings), settings["model"], info, forced=True)

    def take(self, case: Case) -> list[list[dict[str, Any]]]:
        """Set the sizes of the steps to come. Returns: the prompts of each."""
        settings = self._settings(case)
        self.side.take_sizes(recipe_of(settings), forced=True)
        make = ItemMaker()
        lines = Path(settings["prompts"]).read_text(encoding="utf-8").splitlines()
        items: list[Any] = []
        for number, line in enumerate(lines):
            items.append(make(json.loads(line)["row"], f"row {number}"))
        return [
            items[start : start + case.num_prompts]
            for start in range(0, len(items), case.num_prompts)
        ]

    def _settings(self, case: Case) -> dict[str, Any]:
        settings = settings_of(case, STEPS_WRITTEN, self.scratch, self.device)
        settings["overrides"] += self.overrides
        return settings
