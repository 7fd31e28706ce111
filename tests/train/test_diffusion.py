"""Diffusion on real ranks: what is sampled, what is replayed, what is trained, and what comes out
of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.sde import sigmas
from schemas.recipe import ExportKind
from tests.train import diffusion_jobs as jobs
from tests.train.diffusion_jobs import LORA, ROLLS_OUT, Setup
from tests.train.jobs import largest_difference, same_bits
from tests.train.ranks import Ranks

# Ranks are alone with their groups here, so advantages may not look at the whole batch.
OWN = {"name": "grpo", "std_scope": "group"}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "exact KL": {"algorithm": {"name": "flow_grpo", "advantage": OWN}, "lora": LORA},
    "window": {
        "algorithm": {
            "name": "mix_grpo",
            "advantage": OWN,
            "sde": {"steps": {"kind": "window", "size": 2, "every": 1}},
        }
    },
    "dance": {
        "algorithm": {"name": "dance_grpo", "advantage": OWN},
        "diffusion": {"share_noise": True},
    },
    "trust region": {
        "algorithm": {"name": "flow_dppo", "advantage": OWN},
        "stack": {"num_epochs": 2},
    },
    "nft": {
        "algorithm": {"name": "diffusion_nft", "advantage": OWN},
        "lora": LORA,
        "ema": ROLLS_OUT,
    },
}


@pytest.fixture
def model_dir(tiny_sd3_dir: Path) -> str:
    return str(tiny_sd3_dir)


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
def test_a_replay_gives_the_stored_log_probabilities(
    ranks: Ranks, model_dir: str, guidance_scale: float
) -> None:
    setup = Setup(model_dir, diffusion={"guidance_scale": guidance_scale})
    ((stored, scored),) = ranks.run(1, jobs.replayed, setup)
    assert stored.shape == (8, 4)
    torch.testing.assert_close(scored, stored, atol=1e-6, rtol=0)


def test_two_ranks_and_smaller_batches_sample_the_same_from_the_same_noise(
    ranks: Ranks, model_dir: str
) -> None:
    (whole,) = ranks.run(1, jobs.rollout_of, Setup(model_dir))
    (cut,) = ranks.run(1, jobs.rollout_of, Setup(model_dir, max_batch_size=3))
    parts = ranks.run(2, jobs.rollout_of, Setup(model_dir))
    for name in ("latents", "next_latents", "rollout_log_probs"):
        split = torch.cat([part.tensor(name) for part in parts])
        torch.testing.assert_close(split, whole.tensor(name), atol=1e-5, rtol=0)
        torch.testing.assert_close(cut.tensor(name), whole.tensor(name), atol=1e-5, rtol=0)
    # The first latents are the noise itself.
    noise = whole.tensor("latents")[:, 0]
    assert torch.equal(torch.cat([part.tensor("latents")[:, 0] for part in parts]), noise)
    assert len({one.sum().item() for one in noise}) == len(noise), "siblings share their noise"


def test_siblings_that_share_their_noise_start_alike_and_end_apart(
    ranks: Ranks, model_dir: str
) -> None:
    (rollout,) = ranks.run(1, jobs.rollout_of, Setup(model_dir, diffusion={"share_noise": True}))
    groups = rollout.tensor("latents")[:, 0].split(jobs.NUM_SIBLINGS)
    assert all(torch.equal(one, group[0]) for group in groups for one in group)
    assert not torch.equal(groups[0], groups[1])
    ends = rollout.tensor("next_latents")[:, -1]
    assert len({one.sum().item() for one in ends}) == len(ends), (
        "siblings are one and the same sample"
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_ranks_train_as_one_and_a_step_starts_at_ratio_one(
    ranks: Ranks, model_dir: str, name: str
) -> None:
    setup = Setup(model_dir, **ALGORITHMS[name])
    ((alone, metrics),) = ranks.run(1, jobs.train, setup)
    (together, _), _ = ranks.run(2, jobs.train, setup)
    assert largest_difference(alone, together) < 2e-5
    assert all(one["grad_norm"] > 0 and one["skipped_steps"] == 0 for one in metrics)
    if name != "nft":
        assert all(one["delta_log_prob_max"] < 1e-6 for one in metrics)
    if name in ("window", "dance"):
        assert all(one["ratio_max"] == 1.0 for one in metrics)
    if name == "exact KL":
        assert metrics[-1]["kl_ref"] > 0


@pytest.mark.parametrize(
    "change",
    [{"diffusion": {"steps_per_forward": 2}}, {"fsdp": {"activation_checkpointing": True}}],
)
def test_portions_and_recomputation_change_nothing(
    ranks: Ranks, model_dir: str, change: dict[str, Any]
) -> None:
    ((plain, _),) = ranks.run(1, jobs.train, Setup(model_dir))
    ((changed, _),) = ranks.run(1, jobs.train, Setup(model_dir, **change))
    assert largest_difference(plain, changed) < 2e-5


def test_in_bfloat16_the_anchor_is_taken_over_the_very_slices_that_are_trained(
    ranks: Ranks, model_dir: str
) -> None:
    setup = Setup(
        model_dir,
        fsdp={"param_dtype": "bfloat16"},
        stack={"micro_batch_size": 3, "num_updates_per_batch": 2},
    )
    ((_, metrics),) = ranks.run(1, jobs.train, setup, 1)
    # Only the second mini-batch, after one update, may have moved.
    assert abs(metrics[0]["ratio_mean"] - 1) < 0.05


@pytest.mark.parametrize("name", ["exact KL", "nft"])
def test_a_resumed_run_is_bit_identical(
    ranks: Ranks, model_dir: str, tmp_path: Path, name: str
) -> None:
    setup = Setup(model_dir, **ALGORITHMS[name])
    (expected,) = ranks.run(1, jobs.save, setup, str(tmp_path / "checkpoint"))
    (resumed,) = ranks.run(1, jobs.load, setup, str(tmp_path / "checkpoint"))
    assert same_bits(expected, resumed)


def test_a_prompt_without_its_picture_fails_its_own_rows(
    ranks: Ranks, model_dir: str, tmp_path: Path
) -> None:
    ((mask, errors, step),) = ranks.run(
        1, jobs.with_a_bad_row, Setup(model_dir), str(tmp_path / "no-such.png")
    )
    assert mask == [0] * jobs.NUM_SIBLINGS + [1] * jobs.NUM_SIBLINGS
    assert errors[0] is not None and "no-such.png" in errors[0] and errors[-1] is None
    assert step["grad_norm"] > 0


@pytest.mark.parametrize("export", ["full", "merged", "adapter"])
def test_an_export_draws_the_same_picture_in_plain_diffusers(
    ranks: Ranks, model_dir: str, tmp_path: Path, export: str
) -> None:
    lora = None if export == "full" else LORA.model_copy(update={"export": ExportKind(export)})
    setup = Setup(model_dir, lora=lora, diffusion={"guidance_scale": 3.0})
    folder = tmp_path / "exported"
    ((ours, untrained, noise),) = ranks.run(1, jobs.trained_picture, setup, str(folder))
    theirs = plain_latents(model_dir, folder, export, noise)
    assert (ours - untrained).abs().max() > 2e-4, "training changed nothing, so this shows nothing"
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=0)


def plain_latents(model_dir: str, folder: Path, export: str, noise: torch.Tensor) -> torch.Tensor:
    """What diffusers' own pipeline makes of the noise, with our schedule."""
    import diffusers

    library: Any = diffusers
    source = model_dir if export == "adapter" else folder
    pipeline = library.StableDiffusion3Pipeline.from_pretrained(
        source, text_encoder_3=None, tokenizer_3=None
    )
    pipeline.set_progress_bar_config(disable=True)
    if export == "adapter":
        pipeline.load_lora_weights(str(folder))
    # Handed sigmas are shifted again, so the scheduler may have no shift of its own.
    pipeline.scheduler = library.FlowMatchEulerDiscreteScheduler(shift=1.0)
    return pipeline(
        "a photo of the digit zero",
        height=32,
        width=32,
        guidance_scale=3.0,
        latents=noise,
        # As many as there are tokens of the first encoders; see the family.
        max_sequence_length=pipeline.tokenizer_max_length,
        sigmas=sigmas(3, 3.0)[:-1].tolist(),
        num_inference_steps=3,
        output_type="latent",
    ).images
