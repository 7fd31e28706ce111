"""Flow matching on given pictures: the error by hand, micro-batches, and rows without a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.errors import DataError, RecipeError
from rl_core.runs.recipes import load_recipe
from rl_core.trainers.domains.diffusion import DiffusionTrainer
from schemas.recipe import Recipe


def item(folder: Path, index: int) -> dict[str, Any]:
    from PIL import Image

    path = folder / f"{index}.png"
    Image.new("RGB", (32, 32), (40 * index, 255 - 40 * index, 90)).save(path)
    ref = {"modality": "image", "role": "target", "uri": str(path)}
    return {"uid": f"p-{index}", "prompt": f"a {index}", "metadata": {}, "media_refs": [ref]}


def run(model_dir: Path, items: list[dict[str, Any]], steps: int, **placement: Any) -> list[Any]:
    recipe = Recipe.model_validate(
        {
            "name": "given",
            "domain": "diffusion",
            "model": {"path": str(model_dir)},
            "fsdp": {"param_dtype": "float32"},
            "optimizer": {"learning_rate": 1e-3},
            "data": {"train": ["unused"], "eval": ["unused"]},
            "rewards": [{"target": "tests.trainers.shades:ShadeScorer"}],
            "algorithm": {"name": "flow_sft"},
            "diffusion": {"height": 32, "width": 32, "num_steps": 4},
            "rollout": {"samples_per_prompt": 1},
            "training": {"num_iterations": 1, "steps_per_iteration": 8, "prompts_per_step": 4},
            "placement": {"threads_per_device": 1, **placement},
        }
    )
    trainer = DiffusionTrainer(recipe, recipe.model.path, items)
    try:
        trainer.build()
        taken = (trainer.step() for _ in range(steps))
        # The rows are gone with the workers.
        return [(metrics, rollout.fetch()) for metrics, rollout in taken]
    finally:
        trainer.close()


def by_hand(model_dir: Path, rollout: Any) -> float:
    """The error of a plain pipeline's transformer over the noised copies of a rollout."""
    from diffusers import StableDiffusion3Pipeline

    absent = ("text_encoder_3", "tokenizer_3", "image_encoder", "feature_extractor")
    pipeline: Any = StableDiffusion3Pipeline.from_pretrained(model_dir, **dict.fromkeys(absent))
    errors = []
    for clean, sigmas, seeds, prompt in zip(
        rollout.tensor("clean"),
        rollout.tensor("sigmas"),
        rollout.tensor("noise_seeds"),
        rollout.non_tensor_batch["prompt"],
        strict=True,
    ):
        embeds, _, pooled, _ = pipeline.encode_prompt(
            [prompt],
            None,
            None,
            do_classifier_free_guidance=False,
            max_sequence_length=pipeline.tokenizer_max_length,
        )
        for sigma, seed in zip(sigmas, seeds.tolist(), strict=True):
            noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed))
            with torch.no_grad():
                found = pipeline.transformer(
                    hidden_states=((1 - sigma) * clean + sigma * noise)[None],
                    timestep=sigma[None] * 1000,
                    encoder_hidden_states=embeds,
                    pooled_projections=pooled,
                    return_dict=False,
                )[0][0]
            errors.append(float((found - (noise - clean)).square().mean()))
    return sum(errors) / len(errors)


@pytest.mark.usefixtures("ray_cluster")
def test_the_loss_is_the_error_of_the_velocity_whatever_the_micro_batches(
    tiny_sd3_dir: Path, tmp_path: Path
) -> None:
    items = [item(tmp_path, index) for index in range(4)]
    whole = run(tiny_sd3_dir, items, 2, micro_batch_size=4)
    parts = run(tiny_sd3_dir, items, 2, micro_batch_size=1)
    found = [metrics["loss"] for metrics, _ in whole]
    assert found == pytest.approx([metrics["loss"] for metrics, _ in parts], abs=1e-5)
    assert found[0] == pytest.approx(by_hand(tiny_sd3_dir, whole[0][1]), abs=1e-4)


@pytest.mark.usefixtures("ray_cluster")
def test_a_row_without_a_picture_is_named(tiny_sd3_dir: Path, tmp_path: Path) -> None:
    items = [item(tmp_path, index) for index in range(4)]
    items[2]["media_refs"] = []
    with pytest.raises(DataError, match="row p-2 field media_refs: no picture to learn"):
        run(tiny_sd3_dir, items, 1)


def test_several_samples_of_a_given_picture_are_refused() -> None:
    with pytest.raises(RecipeError, match="samples_per_prompt is 4: algorithm flow_sft"):
        load_recipe("smoke/flow-sft", ["rollout.samples_per_prompt=4"])
