"""Muon on the matrices of the blocks: the published rule, on any number of ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from rl_core.errors import StorageError
from rl_core.ranks.rank_info import RankInfo, TrainTopology
from rl_core.runs.recipes import load_recipe
from rl_core.runs.run_folder import run_key
from rl_core.train.muon import MATRICES
from rl_core.train.optimizer import make_optimizer
from schemas.recipe import OptimizerConfig
from tests.train import parallel
from tests.train.jobs import LORA, Setup, make_both, train, train_steps
from tests.train.ranks import Ranks

MUON = {"name": "muon"}


def test_a_step_is_torchs_muon_on_matrices_and_adamw_on_the_rest() -> None:
    torch.manual_seed(0)
    matrices = [nn.Parameter(torch.randn(size)) for size in ((6, 4), (3, 8))]
    rest = [nn.Parameter(torch.randn(5)), nn.Parameter(torch.randn(4, 4))]
    copies = [nn.Parameter(one.detach().clone()) for one in (*matrices, *rest)]
    config = OptimizerConfig.model_validate(
        {**MUON, "learning_rate": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    )
    ours = make_optimizer([*matrices, *rest], config, matrices)
    theirs = [
        torch.optim.Muon(
            copies[:2], lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
        ),
        torch.optim.AdamW(copies[2:], lr=0.02, weight_decay=0.1),
    ]
    for _ in range(3):
        for one, copy in zip((*matrices, *rest), copies, strict=True):
            one.grad = torch.randn_like(one)
            copy.grad = one.grad.clone()
        ours.step()
        for optimizer in theirs:
            optimizer.step()
    for one, copy in zip((*matrices, *rest), copies, strict=True):
        torch.testing.assert_close(one, copy, atol=1e-6, rtol=0)
    assert len(ours.param_groups) == 2, "a step leaves every group to the scheduler"


def updated_by_muon(rank_info: RankInfo, setup: Setup) -> set[str]:
    backend, _ = make_both(rank_info, setup)
    by_muon = {
        id(one)
        for group in backend.optimizer.param_groups
        if group[MATRICES]
        for one in group["params"]
    }
    return {name for name, value in backend.trainable.items() if id(value) in by_muon}


def test_embeddings_head_and_norms_stay_with_adamw(ranks: Ranks, tiny_model_dir: Path) -> None:
    (names,) = ranks.run(1, updated_by_muon, Setup(str(tiny_model_dir), optimizer=MUON))
    assert len(names) == 2 * 7, "seven matrices in each of two blocks"
    assert all(".layers." in name and name.endswith("proj.weight") for name in names)


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_two_ranks_train_the_weights_of_one(ranks: Ranks, tiny_model_dir: Path, kind: str) -> None:
    lora = LORA if kind == "lora" else None
    setup = Setup(str(tiny_model_dir), lora=lora, optimizer=MUON)
    one: dict[str, Tensor] = ranks.run(1, train, setup, [0, 1, 2])[0][0]
    two: dict[str, Tensor] = ranks.run(2, train, setup, [0, 1, 2])[0][0]
    other: dict[str, Any] = ranks.run(1, train, Setup(str(tiny_model_dir), lora=lora), [0, 1, 2])[0]
    # Orthogonalised in bfloat16, whose rounding is 0.4 % of an update.
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=2e-4, rtol=0, msg=name)
    assert max(float((other[0][name] - one[name]).abs().max()) for name in one) > 5e-4


def saved(rank_info: RankInfo, setup: Setup, folder: str) -> None:
    backend, stack = make_both(rank_info, setup)
    train_steps(stack, rank_info, [0])
    backend.save(folder)


def loaded(rank_info: RankInfo, setup: Setup, folder: str) -> str:
    backend, _ = make_both(rank_info, setup)
    try:
        backend.load(folder)
    except StorageError as error:
        return str(error)
    return ""


def test_a_checkpoint_of_another_optimizer_is_refused(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    adamw, muon = (Setup(str(tiny_model_dir), optimizer=one) for one in ({}, MUON))
    ranks.run(1, saved, adamw, str(tmp_path))
    (said,) = ranks.run(1, loaded, muon, str(tmp_path))
    assert "holds optimizer: adamw, this run trains optimizer: muon" in said


def test_the_choice_is_in_the_key_of_a_run_and_momentum_is_muons() -> None:
    keys = {
        run_key(load_recipe("smoke/text", overrides), "cache")
        for overrides in ([], ["optimizer.name=adamw"], ["optimizer.name=muon"])
    }
    assert len(keys) == 2
    with pytest.raises(ValidationError, match="momentum is Muon's: set name: muon"):
        OptimizerConfig(momentum=0.8)


def test_ranks_that_share_matrices_train_the_weights_of_one(
    ranks: Ranks, tiny_model_dir: Path
) -> None:
    setup = Setup(str(tiny_model_dir), optimizer=MUON)
    one, two = (
        ranks.run(size, parallel.train, TrainTopology(tp_size=size), setup, [0, 1, 2])[0][0]
        for size in (1, 2)
    )
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=2e-4, rtol=0, msg=name)
