"""A run that was saved and loaded by other processes goes on as if nothing had happened."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from rl_core.errors import StorageError
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.weights.ema import local_part
from schemas.recipe import EmaFullConfig, EmaLoraConfig, LoraConfig, LrSchedulerConfig
from schemas.sections.policy import LrSchedulerKind
from tests.train.jobs import LORA, Setup, largest_difference, make_both, same_bits, train_steps
from tests.train.ranks import Ranks

FIRST, SECOND = [0, 1], [2, 3]
# Dropout makes the random state matter.
DROPOUT = LoraConfig(rank=4, alpha=8, dropout=0.2)
COSINE = LrSchedulerConfig(kind=LrSchedulerKind.COSINE, warmup_steps=2, min_ratio=0.1)
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "full bfloat16": {"fsdp": {"param_dtype": "bfloat16"}},
    "no root_wrap": {"fsdp": {"root_wrap": False}},
    "lora": {"lora": DROPOUT},
    "muon": {"optimizer": {"name": "muon"}},
    "ema": {"ema": EmaFullConfig(decay=0.9)},
    "ema mirror": {"ema": EmaFullConfig(decay=0.9, mirror=True, rollout=True)},
    "ema adapter": {"ema": EmaLoraConfig(decay=0.9, rollout=True), "lora": DROPOUT},
}


@pytest.fixture(scope="module")
def other_ranks() -> Iterator[Ranks]:
    """Processes that never saw the first half of a run."""
    with Ranks() as started:
        yield started


def setup_of(model_dir: Path, kind: str) -> Setup:
    return Setup(
        str(model_dir), scheduler=COSINE, stack={"num_updates_per_batch": 1}, **KINDS[kind]
    )


def outcome(backend: FSDPBackend, results: list[Any]) -> dict[str, Any]:
    """Weights (whole, on rank 0), this rank's averages, and every figure of the steps."""
    averages = (
        {}
        if backend.ema is None
        else {name: local_part(t).clone() for name, t in backend.ema.shadow.items()}
    )
    return {
        "weights": backend.full_state(),
        "averages": averages,
        "figures": [result.to_floats() for result in results],
        "draw": torch.rand(3),
    }


def straight(rank_info: RankInfo, setup: Setup, folder: str = "") -> dict[str, Any]:
    """Both halves in one go, with a checkpoint between them if there is a folder for it."""
    backend, stack = make_both(rank_info, setup)
    train_steps(stack, rank_info, FIRST)
    if folder:
        backend.save(folder)
    return outcome(backend, train_steps(stack, rank_info, SECOND))


def second_half(rank_info: RankInfo, setup: Setup, folder: str) -> dict[str, Any]:
    backend, stack = make_both(rank_info, setup)
    backend.load(folder)
    return outcome(backend, train_steps(stack, rank_info, SECOND))


@pytest.mark.parametrize(
    ("kind", "world_size"),
    # One rank shards nothing, whatever the kind.
    [*((kind, 2) for kind in KINDS), ("full", 1), ("muon", 1), ("ema adapter", 1)],
)
def test_four_steps_equal_two_saved_loaded_elsewhere_and_two(
    ranks: Ranks,
    other_ranks: Ranks,
    tiny_model_dir: Path,
    tmp_path: Path,
    kind: str,
    world_size: int,
) -> None:
    setup = setup_of(tiny_model_dir, kind)
    expected = ranks.run(world_size, straight, setup, str(tmp_path))
    resumed = other_ranks.run(world_size, second_half, setup, str(tmp_path))
    for wanted, got in zip(expected, resumed, strict=True):
        assert wanted["figures"] == got["figures"]
        assert torch.equal(wanted["draw"], got["draw"])
        for part in ("weights", "averages"):
            assert wanted[part].keys() == got[part].keys()
            assert all(torch.equal(wanted[part][name], got[part][name]) for name in wanted[part])
    assert expected[0]["weights"]


def test_a_checkpoint_leaves_no_trace_in_the_run_that_writes_it(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    setup = setup_of(tiny_model_dir, "ema adapter")
    without, wrote = (ranks.run(1, straight, setup, at)[0] for at in ("", str(tmp_path)))
    assert without["figures"] == wrote["figures"]
    assert torch.equal(without["draw"], wrote["draw"])
    assert same_bits(without["weights"], wrote["weights"])
    assert same_bits(without["averages"], wrote["averages"])


def whole_averages(rank_info: RankInfo, setup: Setup, folder: str, loads: bool) -> dict[str, Any]:
    """The second half, after the first or its checkpoint; averages are unsharded, so that rank
    counts can be compared."""
    backend, stack = make_both(rank_info, setup)
    if loads:
        backend.load(folder)
    else:
        train_steps(stack, rank_info, FIRST)
        backend.save(folder)
    train_steps(stack, rank_info, SECOND)
    assert backend.ema is not None
    backend.apply_eval_ema()
    averages = backend.full_state()
    backend.restore_from_eval()
    return {"weights": backend.full_state(), "averages": averages}


@pytest.mark.parametrize(("saved_on", "loaded_on"), [(2, 1), (1, 2)])
@pytest.mark.parametrize(
    "parts",
    [
        {"ema": EmaFullConfig(decay=0.9)},
        {"ema": EmaLoraConfig(decay=0.9), "lora": LORA},
        {
            "ema": EmaFullConfig(decay=0.9, mirror=True),
            "fsdp": {"root_wrap": False, "cpu_offload": True},
        },
    ],
    ids=["full", "adapter", "mirror"],
)
def test_a_checkpoint_loads_on_another_number_of_ranks(
    ranks: Ranks,
    other_ranks: Ranks,
    tiny_model_dir: Path,
    tmp_path: Path,
    parts: dict[str, Any],
    saved_on: int,
    loaded_on: int,
) -> None:
    setup = Setup(str(tiny_model_dir), scheduler=COSINE, **parts)
    expected = ranks.run(saved_on, whole_averages, setup, str(tmp_path), loads=False)[0]
    got = other_ranks.run(loaded_on, whole_averages, setup, str(tmp_path), loads=True)[0]
    assert largest_difference(expected["weights"], got["weights"]) < 3e-6
    assert largest_difference(expected["averages"], got["averages"]) < 3e-6
    assert not same_bits(expected["weights"], expected["averages"])


def names_saved(rank_info: RankInfo, setup: Setup, folder: str) -> dict[str, set[str]]:
    backend, _ = make_both(rank_info, setup)
    backend.save(folder)
    stored = FileSystemReader(folder + "/weights").read_metadata().state_dict_metadata
    return {
        "trained": set(backend.trainable),
        "sent": set(backend.full_state()),
        "stored": {name.removeprefix("model.") for name in stored if name.startswith("model.")},
    }


@pytest.mark.parametrize("lora", [None, LORA], ids=["all weights", "adapters"])
def test_what_is_frozen_is_neither_saved_nor_sent(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, lora: LoraConfig | None
) -> None:
    """Nor is the head of a tied model, which torch knows under a second name."""
    names = ranks.run(1, names_saved, Setup(str(tiny_model_dir), lora=lora), str(tmp_path))[0]
    assert names["trained"] and names["stored"] == names["sent"] == names["trained"]


@pytest.fixture(scope="module")
def written(ranks: Ranks, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a whole model."""
    folder = tmp_path_factory.mktemp("written")
    ranks.run(1, names_saved, Setup(str(tiny_model_dir)), str(folder))
    return folder


def refusal(rank_info: RankInfo, setup: Setup, folder: str) -> str:
    backend, _ = make_both(rank_info, setup)
    before = backend.full_state()
    try:
        backend.load(folder)
    except StorageError as error:
        assert same_bits(before, backend.full_state())
        return str(error)
    return "loaded"


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"lora": LORA}, r"holds weights: full, this run trains weights: adapters of rank 4"),
        ({"ema": EmaFullConfig()}, r"holds average: none, this run trains average: EmaFullConfig"),
    ],
    ids=["adapters", "average"],
)
def test_a_checkpoint_of_another_kind_is_refused_by_name(
    ranks: Ranks, tiny_model_dir: Path, written: Path, parts: dict[str, Any], named: str
) -> None:
    assert named in ranks.run(1, refusal, Setup(str(tiny_model_dir), **parts), str(written))[0]


@pytest.mark.parametrize(
    "lost", ["weights/.metadata", "weights/__0_0.distcp", "rank-0.pt", "contents.json"]
)
def test_a_checkpoint_that_lost_a_file_is_refused(
    ranks: Ranks, tiny_model_dir: Path, written: Path, tmp_path: Path, lost: str
) -> None:
    damaged = shutil.copytree(written, tmp_path / "damaged")
    (damaged / lost).unlink()
    said = ranks.run(1, refusal, Setup(str(tiny_model_dir)), str(damaged))[0]
    assert "cannot be read" in said
