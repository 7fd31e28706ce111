"""Weights that are read block by block while they are sharded are those of a whole load."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from rl_core.models.bundle import ModelBundle
from rl_core.models.loading.unread import unread_of
from rl_core.ranks.rank_info import RankInfo
from schemas.recipe import EmaFullConfig, LoraConfig, ModelConfig
from tests.train.jobs import WITH_KL, Setup, make_both, train_steps
from tests.train.parallel import copy_of
from tests.train.ranks import Ranks

LORA = LoraConfig(rank=4, alpha=8)
MIRRORED = EmaFullConfig(decay=0.5, mirror=True)
SETUPS: dict[str, dict[str, Any]] = {
    "all weights": {},
    "rounded": {"fsdp": {"param_dtype": "bfloat16", "master_dtype": "bfloat16"}},
    "adapters": {"lora": LORA},
    "reference and mirror": {"algorithm": WITH_KL, "ema": MIRRORED},
    "root not wrapped": {"lora": LORA, "fsdp": {"root_wrap": False}},
}


def tensors_of(backend: Any) -> dict[str, torch.Tensor]:
    """This rank's part of every parameter and buffer of every model."""
    found = {}
    for place, model in enumerate(backend.models):
        for name, one in [*model.named_parameters(), *model.named_buffers()]:
            part = one.to_local() if isinstance(one, DTensor) else one
            found[f"{place} {name}"] = part.detach().clone()
    return found


def both_ways(rank_info: RankInfo, setup: Setup) -> dict[str, Any]:
    """Compare a load in shards with a whole one, before and after a step."""
    config = ModelConfig(path=setup.model_dir)
    whole, stack = make_both(rank_info, setup, ModelBundle(setup.model_dir, config))
    bundle = ModelBundle.in_shards_of(setup.model_dir, config)
    was_unread = unread_of(bundle.policy.language_model) is not None
    parts, other = make_both(rank_info, setup, bundle)
    ours, theirs = tensors_of(parts), tensors_of(whole)
    differ = [name for name in theirs if not torch.equal(theirs[name], ours[name])]
    steps = [train_steps(one, rank_info, [0])[0].loss for one in (stack, other)]
    return {
        "names": [*theirs] == [*ours],
        "differ": differ,
        "formats": [one.dtype for one in theirs.values()] == [one.dtype for one in ours.values()],
        "paths": whole.policy.paths == parts.policy.paths,
        "was_unread": was_unread,
        "steps": steps[0] == steps[1],
        "kinds": [type(one).__name__ for one in whole.policy.modules()]
        == [type(one).__name__ for one in parts.policy.modules()],
    }


SAME = {"names": True, "differ": [], "formats": True, "paths": True, "steps": True, "kinds": True}


@pytest.mark.parametrize("name", SETUPS)
def test_two_ranks_get_the_weights_of_a_whole_load(
    ranks: Ranks, tiny_model_dir: Path, name: str
) -> None:
    setup = Setup(str(tiny_model_dir), **SETUPS[name])
    for found in ranks.run(2, both_ways, setup):
        assert found == SAME | {"was_unread": True}


@pytest.mark.parametrize(
    ("family", "changes", "was_unread"),
    [
        ("qwen2", {"tie_word_embeddings": True, "num_key_value_heads": 2}, True),
        ("gemma2", {"num_key_value_heads": 2, "tie_word_embeddings": True}, True),
        (
            "qwen3_moe",
            {
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 24,
                "num_key_value_heads": 2,
            },
            False,
        ),
        ("gpt_neox", {}, True),
    ],
)
def test_other_families_get_the_weights_of_a_whole_load(
    ranks: Ranks,
    tiny_model_dir: Path,
    tmp_path: Path,
    family: str,
    changes: dict[str, Any],
    was_unread: bool,
) -> None:
    folder = copy_of(tiny_model_dir, tmp_path / family, family, **changes)
    for found in ranks.run(2, both_ways, Setup(str(folder))):
        assert found == SAME | {"was_unread": was_unread}
