"""GLM-Image on real ranks: what it wrote and drew is replayed, and one step trains both parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train import glm_jobs as jobs
from tests.train.jobs import largest_difference
from tests.train.ranks import Ranks
from tests.train.unified_jobs import IMAGES, TEXT, Setup, load, save, train

WRITER, DRAWER = ".vision_language_encoder.", ".transformer."


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.models.tiny_glm_image import glm_image_folder

    return str(glm_image_folder(tmp_path_factory.mktemp("tiny-glm-image") / "model"))


def setup(model_dir: str, **diffusion: Any) -> Setup:
    return Setup(model_dir, diffusion={"height": 64, "width": 96, "num_steps": 3, **diffusion})


@pytest.mark.parametrize("guidance_scale", [1.0, 1.5])
def test_a_replay_scores_plans_and_pictures_as_the_rollout_did(
    ranks: Ranks, model_dir: str, guidance_scale: float
) -> None:
    ((written, drawn),) = ranks.run(
        1, jobs.replayed, setup(model_dir, guidance_scale=guidance_scale)
    )
    for stored, scored in (written, drawn):
        torch.testing.assert_close(scored, stored, atol=1e-5, rtol=0)
    assert written[0].shape == (4, 13 * 19 + 2 * 3)
    assert (written[0] < 0).all() and drawn[0].shape == (8, 3)


def test_one_step_trains_both_parts_alike_on_two_ranks_and_nothing_that_is_frozen(
    ranks: Ranks, model_dir: str
) -> None:
    ((alone, metrics),) = ranks.run(1, train, setup(model_dir))
    (together, _), _ = ranks.run(2, train, setup(model_dir))
    assert largest_difference(alone, together) < 2e-5
    (before,) = ranks.run(1, jobs.weights, setup(model_dir))
    assert before.keys() == alone.keys()
    for part in (WRITER, DRAWER):
        moved = [
            name for name in alone if part in name and not torch.equal(alone[name], before[name])
        ]
        # A code that no plan holds has an embedding without a gradient; nothing else stays where it
        # was.
        assert len(moved) == sum(part in name for name in alone), part
    assert not any(".visual." in name or ".vqmodel." in name for name in alone)
    assert metrics[TEXT]["grad_norm"] > 0 < metrics[IMAGES]["grad_norm"]


def test_a_resumed_run_is_bit_identical_and_its_export_is_a_plain_pipeline(
    ranks: Ranks, model_dir: str, tmp_path: Path
) -> None:
    from diffusers.pipelines.glm_image.pipeline_glm_image import GlmImagePipeline

    checkpoint, exported = str(tmp_path / "checkpoint"), str(tmp_path / "exported")
    ((expected, _),) = ranks.run(1, save, setup(model_dir), checkpoint, exported)
    (resumed,) = ranks.run(1, load, setup(model_dir), checkpoint)
    assert all(torch.equal(value, resumed[name]) for name, value in expected.items())
    pipeline: Any = GlmImagePipeline.from_pretrained(exported, local_files_only=True)
    start: Any = GlmImagePipeline.from_pretrained(model_dir, local_files_only=True)
    for part in ("vision_language_encoder", "transformer", "text_encoder", "vae"):
        ours = {
            name.partition(f".{part}.")[2]: value
            for name, value in expected.items()
            if f".{part}." in name
        }
        before = getattr(start, part).state_dict()
        for name, value in getattr(pipeline, part).state_dict().items():
            torch.testing.assert_close(value, ours.get(name, before[name]), atol=0, rtol=0)
        assert bool(ours) is (part in ("vision_language_encoder", "transformer"))
