"""What a model is told of a prompt does not depend on what else was asked for, then or before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rl_core.models.diffusion.base import DiffusionFamily, Size
from rl_core.models.diffusion.bundle import load_family
from rl_core.models.diffusion.guidance import PromptConditions
from rl_core.rollout.diffusion.prompt_conditions import ConditionCache

PROMPTS = [
    f"a photo of the {colour} digit {digit}"
    for colour in ("red", "green", "9")
    for digit in ("one", "two", "6")
]


@pytest.fixture(scope="module")
def family(tiny_sd3_dir: Path) -> DiffusionFamily:
    return load_family(str(tiny_sd3_dir), str(tiny_sd3_dir))


def cache(family: DiffusionFamily) -> ConditionCache:
    return ConditionCache(family, Size(32, 32), scale=3.0, negative_prompt="drawn by hand")


def told(cache: ConditionCache, prompts: list[str]) -> list[list[torch.Tensor]]:
    """What is told of each prompt, as tensors."""
    found = cache([{"prompt": prompt} for prompt in prompts])
    assert all(isinstance(one, PromptConditions) for one in found)
    return [[*one.positive.tensors.values(), *one.negative.tensors.values()] for one in found]


def test_conditions_are_the_same_in_all_company_bit_by_bit(family: DiffusionFamily) -> None:
    together, before = cache(family), cache(family)
    told(before, PROMPTS[3:])
    both = zip(told(together, PROMPTS), told(before, PROMPTS), strict=True)
    for prompt, (one, other) in zip(PROMPTS, both, strict=True):
        (alone,) = told(cache(family), [prompt])
        assert all(map(torch.equal, one, alone)) and all(map(torch.equal, other, alone)), prompt
