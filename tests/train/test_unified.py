"""The unified model on real ranks: what a joint step is made of, and that it is the same however it
is cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.train.stacks.unified_stack import StageWeight
from tests.train import unified_jobs as jobs
from tests.train.jobs import largest_difference, same_bits
from tests.train.ranks import Ranks
from tests.train.unified_jobs import IMAGES, LORA, TEXT, Setup

NFT = {"name": "diffusion_nft", "old_policy": "current"}


@pytest.fixture
def model_dir(tiny_unified_dir: Path) -> str:
    return str(tiny_unified_dir)


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
def test_a_replay_reads_the_plan_as_the_rollout_did(
    ranks: Ranks, model_dir: str, guidance_scale: float
) -> None:
    ((stored, scored),) = ranks.run(
        1, jobs.replayed, Setup(model_dir, diffusion={"guidance_scale": guidance_scale})
    )
    assert stored.shape == (len(jobs.WRITTEN) * jobs.NUM_PICTURES, 4)
    torch.testing.assert_close(scored, stored, atol=1e-6, rtol=0)


def test_the_gradient_of_a_joint_step_is_the_weighted_sum_of_both_worked_apart(
    ranks: Ranks, model_dir: str
) -> None:
    setup = Setup(model_dir)
    ((joint, metrics),) = ranks.run(1, jobs.gradient, setup, IMAGES, TEXT)
    (text,) = ranks.run(1, jobs.gradient_apart, setup, TEXT)
    (images,) = ranks.run(1, jobs.gradient_apart, setup, IMAGES)
    assert joint.keys() == {*text, *images}
    decoder = [name for name in joint if ".decoder." in name]
    assert set(decoder) == set(text), "tokens train the decoder alone"
    drawn = [name for name in decoder if name in images and images[name].abs().max() > 0]
    assert len(drawn) > len(decoder) / 2, "drawing trains the decoder, too"
    for name, value in joint.items():
        zero = torch.zeros_like(value)
        apart = 0.5 * text.get(name, zero) + 2.0 * images.get(name, zero)
        torch.testing.assert_close(
            value, apart, atol=1e-6, rtol=1e-5, msg=lambda said, n=name: f"{n}: {said}"
        )
    for stage, weight, alone in ((TEXT, 0.5, text), (IMAGES, 2.0, images)):
        norm = weight * torch.stack([value.norm() for value in alone.values()]).norm()
        assert metrics[stage]["grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    total = torch.stack([value.norm() for value in joint.values()]).norm()
    assert metrics[TEXT]["joint_grad_norm"] == pytest.approx(float(total), rel=1e-4)


def test_a_stage_by_itself_leaves_no_trace_of_the_other_and_may_be_clipped(
    ranks: Ranks, model_dir: str
) -> None:
    weights = {TEXT: StageWeight(1.0, max_grad_norm=1e-3), IMAGES: StageWeight(1.0)}
    ((text, metrics),) = ranks.run(1, jobs.gradient, Setup(model_dir, weights=weights), TEXT)
    assert list(metrics) == [TEXT]
    assert not any(".transformer." in name for name in text)
    assert metrics[TEXT]["grad_norm"] > 1e-2
    assert torch.stack([value.norm() for value in text.values()]).norm() == pytest.approx(
        1e-3, rel=1e-2
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        {},
        {"stack": {"num_updates_per_batch": 2, "num_epochs": 2}},
        {
            "lora": LORA,
            "algorithms": {
                TEXT: {"kl": {"coef": 0.1}},
                IMAGES: {"kl": {"coef": 0.1, "kind": "exact"}},
            },
        },
        {"algorithms": {IMAGES: NFT}},
    ],
    ids=["one update", "four updates", "adapters and references", "pictures by DiffusionNFT"],
)
def test_two_ranks_train_as_one(ranks: Ranks, model_dir: str, change: dict[str, Any]) -> None:
    # With several mini-batches a rank's part is not a prefix of the whole, so only passes may
    # differ.
    several = "stack" in change
    setup = Setup(model_dir, **change)
    ((alone, metrics),) = ranks.run(1, jobs.train, setup)
    for stage in (TEXT, IMAGES):
        assert metrics[stage]["grad_norm"] > 0 == metrics[stage]["skipped_steps"]
        if "ratio_max" in metrics[stage]:
            # Each stage has an anchor of its own, frozen over the very slices that are trained.
            assert (metrics[stage]["ratio_max"] > 1.0) is several
    if several:
        smaller = Setup(model_dir, stack={**change["stack"], "micro_batch_size": 1})
        ((together, _),) = ranks.run(1, jobs.train, smaller)
    else:
        (together, _), _ = ranks.run(2, jobs.train, setup)
    assert largest_difference(alone, together) < 2e-5


def test_a_resumed_run_is_bit_identical_and_an_export_draws_the_same(
    ranks: Ranks, model_dir: str, tmp_path: Path
) -> None:
    setup, folders = Setup(model_dir), (str(tmp_path / "checkpoint"), str(tmp_path / "exported"))
    ((expected, drawn),) = ranks.run(1, jobs.save, setup, *folders)
    (resumed,) = ranks.run(1, jobs.load, setup, folders[0])
    assert same_bits(expected, resumed)
    (start,) = ranks.run(1, jobs.untrained_picture, setup)
    (again,) = ranks.run(1, jobs.untrained_picture, Setup(folders[1]))
    assert (drawn - start).abs().max() > 1e-4, "training changed nothing, so this shows nothing"
    torch.testing.assert_close(again, drawn, atol=1e-6, rtol=0)
