"""Weights that are read block by block while they are sharded are those of a whole load."""

import shutil
import time
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch
from weakref import finalize

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor

from rl_core.distributed.failures import Failure, cause, failure_of
from rl_core.errors import ModelError, SiblingFailed
from rl_core.models.bundle import ModelBundle
from rl_core.models.causal_lm import blocks
from rl_core.models.heads.reward_model import RewardBundle
from rl_core.models.loading import together
from rl_core.models.loading.together import loaded_together
from rl_core.models.loading.unread import Source, unread_of
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.critic import CriticBundle
from schemas.recipe import EmaFullConfig, LoraConfig, ModelConfig
from tests.train.jobs import WITH_KL, Setup, make_backend, make_both, train_steps
from tests.train.parallel import copy_of
from tests.train.ranks import MEETING_S, Ranks

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


def both_ways(rank_info: RankInfo, setup: Setup, held_share: float = 0.0) -> dict[str, Any]:
    """Compare a load in shards with a whole one, before and after a step."""
    with patch.object(together, "HELD_SHARE", held_share):
        return compared(rank_info, setup)


def compared(rank_info: RankInfo, setup: Setup) -> dict[str, Any]:
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


def most_at_once(rank_info: RankInfo, setup: Setup) -> tuple[int, int, int]:
    """Return the most numbers of whole weights in memory at once, those of the largest block, and
    those outside of the blocks."""
    held, most = [0], [0]
    read = Source.read

    def dropped(size: int) -> None:
        held[0] -= size

    def counted(source: Source) -> torch.Tensor:
        weight = read(source)
        held[0] += weight.numel()
        most[0] = max(most[0], held[0])
        finalize(weight, dropped, weight.numel())
        return weight

    no_room = patch.object(together, "HELD_SHARE", 0.0)
    with no_room, patch.object(Source, "read", counted):
        bundle = ModelBundle.in_shards_of(setup.model_dir, ModelConfig(path=setup.model_dir))
        sizes = [sum(one.numel() for one in block.parameters()) for block in blocks(bundle.policy)]
        outside = sum(one.numel() for one in bundle.policy.parameters()) - sum(sizes)
        make_both(rank_info, setup, bundle)
    return most[0], max(sizes), outside


SAME = {"names": True, "differ": [], "formats": True, "paths": True, "steps": True, "kinds": True}


@pytest.mark.parametrize("name", SETUPS)
def test_two_ranks_get_the_weights_of_a_whole_load(
    ranks: Ranks, tiny_model_dir: Path, name: str
) -> None:
    setup = Setup(str(tiny_model_dir), **SETUPS[name])
    for found in ranks.run(2, both_ways, setup):
        assert found == SAME | {"was_unread": True}


def test_a_small_model_gets_the_weights_of_a_whole_load(ranks: Ranks, tiny_model_dir: Path) -> None:
    for found in ranks.run(2, both_ways, Setup(str(tiny_model_dir)), together.HELD_SHARE):
        assert found == SAME | {"was_unread": True}


def times_read(rank_info: RankInfo, setup: Setup, held_share: float) -> int:
    """Return how often the weight that is read most often is read, from its load to its wrap."""
    times: Counter[str] = Counter()
    read = Source.read

    def counted(source: Source) -> torch.Tensor:
        times[source.name] += 1
        return read(source)

    share = patch.object(together, "HELD_SHARE", held_share)
    with share, patch.object(Source, "read", counted):
        bundle = ModelBundle.in_shards_of(setup.model_dir, ModelConfig(path=setup.model_dir))
        make_both(rank_info, setup, bundle)
    return max(times.values())


def test_a_small_model_is_read_once_for_all_checks_and_once_for_the_shards(
    ranks: Ranks, tiny_model_dir: Path
) -> None:
    setup = Setup(str(tiny_model_dir))
    first, second = ranks.run(2, times_read, setup, together.HELD_SHARE)
    assert first == 2 and second <= 2
    assert ranks.run(2, times_read, setup, 0.0)[0] > 10, "one that does not fit is read anew"


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


def test_no_rank_holds_more_whole_weights_than_one_block_and_those_outside(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    shape = {"num_hidden_layers": 6, "num_key_value_heads": 2}
    folder = copy_of(tiny_model_dir, tmp_path / "deep", "llama", **shape)
    for most, block, outside in ranks.run(2, most_at_once, Setup(str(folder))):
        assert 0 < most <= block + outside


def with_head(rank_info: RankInfo, setup: Setup, kind: type[ModelBundle]) -> dict[str, Any]:
    """Compare both loads of a model whose vocabulary projection gave way to a head of its own."""
    config = ModelConfig(path=setup.model_dir)
    whole = make_backend(rank_info, setup, bundle=kind(setup.model_dir, config))
    bundle = kind.in_shards_of(setup.model_dir, config)
    was_unread = unread_of(bundle.policy.language_model) is not None
    ours = tensors_of(make_backend(rank_info, setup, bundle=bundle))
    theirs = tensors_of(whole)
    differ = [name for name in theirs if not torch.equal(theirs[name], ours[name])]
    return {"was_unread": was_unread, "names": [*theirs] == [*ours], "differ": differ}


@pytest.mark.parametrize("kind", [CriticBundle, RewardBundle])
def test_a_model_with_a_head_of_its_own_gets_the_weights_of_a_whole_load(
    ranks: Ranks, tiny_model_dir: Path, kind: type[ModelBundle]
) -> None:
    for found in ranks.run(2, with_head, Setup(str(tiny_model_dir)), kind):
        assert found == {"was_unread": True, "names": True, "differ": []}


def exported(rank_info: RankInfo, setup: Setup, folder: str) -> bool:
    """Export a model that was read in shards, which the first rank checks alone."""
    bundle = ModelBundle.in_shards_of(setup.model_dir, ModelConfig(path=setup.model_dir))
    make_backend(rank_info, setup, bundle=bundle).export(folder)
    return Path(folder, "model.safetensors").is_file()


def test_the_first_rank_exports_without_the_others(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    setup = Setup(str(tiny_model_dir), lora=LORA)
    assert ranks.run(2, exported, setup, str(tmp_path / "export"))[0]


def seeing(rank_info: RankInfo, folder: str) -> dict[str, Any]:
    """Compare both loads of a vision-language model."""
    config = ModelConfig(path=folder)
    whole = ModelBundle(folder, config).policy
    bundle = ModelBundle.in_shards_of(folder, config)
    ours = bundle.policy
    unread = unread_of(ours.language_model)
    was_unread = unread is not None
    if unread is not None:
        unread.read_into(ours.modules())
    pairs = list(zip(whole.named_parameters(), ours.named_parameters(), strict=True))
    return {
        "was_unread": was_unread,
        "differ": [a for (a, one), (b, two) in pairs if a != b or not torch.equal(one, two)],
        "learns": [a for (a, one), (_, two) in pairs if one.requires_grad != two.requires_grad],
        "paths": whole.paths == ours.paths,
    }


def test_a_model_that_sees_gets_the_weights_of_a_whole_load(
    ranks: Ranks, tiny_vlm_dir: Path
) -> None:
    for found in ranks.run(2, seeing, str(tiny_vlm_dir)):
        assert found == {"was_unread": True, "differ": [], "learns": [], "paths": True}


def failure(rank_info: RankInfo, folders: list[str], lacks_memory: int | None) -> Failure | None:
    """Load each rank's own folder together with the others. Returns: its failure, as a worker
    reports it. Args: lacks_memory: rank whose machine has none left."""
    folder = folders[rank_info.rank]
    full = patch("rl_core.models.bundle.load_policy", side_effect=MemoryError("no memory left"))
    try:
        with full if lacks_memory == rank_info.rank else nullcontext(), loaded_together():
            policy = ModelBundle(folder, ModelConfig(path=folder)).policy
            unread = unread_of(policy.language_model)
            assert unread is not None
            unread.read_into(policy.modules())
    except Exception as error:
        return failure_of(error, rank_info.rank, f"rank {rank_info.rank}")
    return None


def test_what_is_wrong_with_a_model_is_said_by_the_first_rank(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder = copy_of(tiny_model_dir, tmp_path / "bad", "llama", num_key_value_heads=2)
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name][0, 0] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    own, told = ranks.run(2, failure, [str(folder)] * 2, None)
    assert own is not None and isinstance(own.error, ModelError) and not own.in_collective
    assert name in own.summary and "NaN" in own.summary
    assert told is not None and isinstance(told.error, SiblingFailed) and name in told.summary


def cut_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def lack_the_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("spoil", [cut_weights, lack_the_tokenizer, None])
def test_ranks_end_soon_when_one_fails_alone_whose_error_is_the_cause(
    ranks: Ranks,
    tiny_model_dir: Path,
    tmp_path: Path,
    bad: int,
    spoil: Callable[[Path], None] | None,
) -> None:
    own = tmp_path / "own"
    shutil.copytree(tiny_model_dir, own)
    folders = [str(tiny_model_dir)] * 2
    if spoil is not None:
        spoil(own)
        folders[bad] = str(own)
    start = time.monotonic()
    failures = ranks.run(2, failure, folders, bad if spoil is None else None)
    assert time.monotonic() - start < MEETING_S / 2, "they waited for the group's patience"
    found = [one for one in failures if one is not None]
    first = cause(found)
    assert len(found) == 2 and first.rank == bad
    if spoil is None:
        assert first.out_of_memory
    else:
        assert isinstance(first.error, ModelError) and str(own) in first.summary
    (other,) = (one for one in found if one is not first)
    assert isinstance(other.error, SiblingFailed) and f"rank {bad} could not" in other.summary
