"""The unified trainer on a tiny GLM-Image: codes are written, drawn and judged, and one step trains
both parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rl_core.errors import ModelError
from rl_core.trainers.domains.unified import UnifiedTrainer
from schemas.recipe import Recipe
from tests.trainers.domains import test_unified as compact
from tests.trainers.domains.test_prompt_enhancer import seen

NUM_TOKENS = 13 * 19 + 2 * 3


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.models.tiny_glm_image import glm_image_folder

    return glm_image_folder(tmp_path_factory.mktemp("tiny-glm-image") / "model")


def start(model_dir: Path, max_new_tokens: int = NUM_TOKENS) -> UnifiedTrainer:
    recipe: dict[str, Any] = compact.make_recipe(model_dir).model_dump()
    recipe["rollout"] |= {"samples_per_prompt": 2, "max_new_tokens": max_new_tokens}
    recipe["diffusion"] |= {"height": 64, "width": 96, "guidance_scale": 1.5}
    trainer = UnifiedTrainer(Recipe.model_validate(recipe), str(model_dir), compact.items())
    trainer.build()
    return trainer


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_one_step_of_the_loop_trains_both_parts(model_dir: Path) -> None:
    trainer = start(model_dir)
    try:
        before = compact.weights(trainer)
        drawn = seen(trainer)
        metrics, text = trainer.step()
        after = compact.weights(trainer)
        assert compact.moved(before, after, "vision_language_encoder") and compact.moved(
            before, after, "transformer"
        )
        assert metrics["text/grad_norm"] > 0 < metrics["images/grad_norm"]
        assert text.non_tensor_batch["stop_reason"].tolist() == ["eos"] * len(text)
        assert set(text.tensor("num_tokens").tolist()) == {NUM_TOKENS}
        assert all(picture.shape == (64, 96, 3) for picture in drawn[0].non_tensor_batch["images"])
        # Replayed at once, the codes are as likely as they were when they were drawn.
        assert abs(metrics["text/delta_log_prob_max"]) < 1e-4
        played = trainer.evaluate(compact.items()[:2], max_new_tokens=NUM_TOKENS)
        assert not played.tensor("failed").any()
    finally:
        trainer.close()


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_plans_of_another_length_are_refused(model_dir: Path) -> None:
    trainer = start(model_dir, max_new_tokens=64)
    try:
        with pytest.raises(
            ModelError,
            match=r"max_new_tokens is 64; the plan of a picture of 64 x 96 pixels has 253",
        ):
            trainer.step()
    finally:
        trainer.close()
