"""The embedded diffusion model: its parts are what they say, a plain pipeline opens it, and it can
learn."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from rl_core.builtin import embedded
from rl_core.builtin.data.digit_prompts import draw_prompts
from rl_core.builtin.models.tiny_sd3 import (
    SIDE,
    TEXT_LENGTH,
    make_pipeline,
    make_tokenizer,
    pixel_codec,
)
from rl_core.builtin.models.tiny_sd3_warm_up import (
    load,
    loss_of,
    probability_of,
    trained_parts,
    warm_up,
)
from rl_core.errors import ModelError
from rl_core.models.diffusion.base import Size
from rl_core.models.diffusion.prompt_lengths import PromptLengths
from rl_core.models.diffusion.sd3 import SD3
from rl_core.models.locate import model_identity, tokenizer_identity
from rl_core.models.model_path import check_path


@pytest.fixture(scope="module")
def pipeline() -> Any:
    return make_pipeline()


@pytest.fixture(scope="module")
def folder(pipeline: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny-sd3")
    pipeline.save_pretrained(path)
    return path


def test_words_of_the_prompts_are_whole_and_any_text_comes_back():
    tokenizer = make_tokenizer()
    assert tokenizer.tokenize('the digit "7", handwritten') == [
        *("the</w>", "digit</w>", '"</w>', "7</w>", '",</w>', "handwritten</w>")
    ]
    ids = tokenizer("zürich: vii?")["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "zürich : vii ?"
    assert (ids[0], ids[-1]) == (tokenizer.bos_token_id, tokenizer.eos_token_id) and ids.count(
        ids[-1]
    ) == 1


def test_the_codec_keeps_every_pixel_of_a_latent_also_of_one_that_no_picture_has():
    vae = pixel_codec()
    grey = torch.rand(3, 1, 8, 8) * 2 - 1
    pictures = torch.nn.functional.interpolate(grey, size=SIDE).expand(-1, 3, -1, -1)
    posterior = vae.encode(pictures).latent_dist
    torch.testing.assert_close(posterior.mode(), grey, atol=2e-3, rtol=0)
    assert posterior.std.max() < 1e-6
    torch.testing.assert_close(vae.decode(grey).sample, pictures, atol=2e-3, rtol=0)
    torch.testing.assert_close(vae.decode(3 * grey).sample, 3 * pictures, atol=1e-2, rtol=0)


def test_a_plain_pipeline_opens_the_folder_and_draws_what_ours_does(pipeline: Any, folder: Path):
    plain = diffusers.StableDiffusion3Pipeline.from_pretrained(  # pyright: ignore[reportAttributeAccessIssue]
        folder, text_encoder_3=None, tokenizer_3=None
    )
    plain.set_progress_bar_config(disable=True)
    drawn = [
        one(
            "a photo of the digit seven",
            num_inference_steps=3,
            guidance_scale=2.0,
            max_sequence_length=TEXT_LENGTH,
            generator=torch.Generator().manual_seed(0),
            output_type="pt",
        ).images
        for one in (pipeline, plain)
    ]
    assert drawn[0].shape == (1, 3, SIDE, SIDE)
    assert torch.equal(*drawn)


def test_the_family_encodes_prompts_as_the_warm_up_does(pipeline: Any):
    text = "the number 4"
    (condition,) = SD3(pipeline).encode([text], [None], Size(SIDE, SIDE))
    embeds, _, pooled, _ = pipeline.encode_prompt(
        [text], None, None, do_classifier_free_guidance=False, max_sequence_length=TEXT_LENGTH
    )
    assert torch.equal(condition.tensors["prompt_embeds"], embeds[0])
    assert torch.equal(condition.tensors["pooled"], pooled[0])
    assert SD3(pipeline).latent_shape(Size(SIDE, SIDE)) == (1, 8, 8)


def test_gradients_reach_the_transformer_and_both_text_encoders():
    pipeline = make_pipeline(seed=3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        loss = loss_of(pipeline, load(pipeline), random.Random(0))
    loss.backward()
    # Data and noise of variance one each: what predicting nothing costs.
    assert 1.0 < loss.item() < 4.0
    for part in trained_parts(pipeline):
        total = sum(float(p.grad.abs().sum()) for p in part.parameters() if p.grad is not None)
        assert total > 0, type(part).__name__


def test_the_judge_sees_digits_that_went_through_the_codec(pipeline: Any):
    from rl_core.rewards.base import Sample
    from rl_core.rewards.samples import as_image
    from rl_core.rewards.scorers.digit import DigitScorer, Judge

    digits, family = load(pipeline), SD3(pipeline)
    pictures = family.decode(digits.latents[:40])
    asked = {place: digit for digit, places in enumerate(digits.places) for place in places}
    samples = [
        Sample(prompt=f"the digit {asked[place]}", image=as_image(pictures[place]))
        for place in range(40)
    ]
    for judge in Judge:
        scores = DigitScorer(DigitScorer.Config(judge=judge)).score_images(samples)
        # A density is sure of usual digits alone.
        least = 0.6 if judge is Judge.DENSITY else 0.8
        assert sum(map(float, scores)) / len(scores) > least  # pyright: ignore[reportArgumentType]


def test_an_untrained_model_draws_nothing_that_a_judge_knows(pipeline: Any):
    assert probability_of(pipeline, draw_prompts("train", 10, seed=0)) < 0.4


def test_a_warm_up_that_does_not_get_there_is_an_error(pipeline: Any):
    with pytest.raises(ModelError, match=r"embedded:tiny-sd3 reached 0\.00 of 0\.9 after 0 steps"):
        warm_up(pipeline, stop_at=0.9, max_steps=0)


def test_a_pipeline_folder_is_a_model_with_a_tokenizer_and_weights_of_its_own(
    folder: Path, tmp_path: Path
):
    assert check_path(str(folder), tmp_path) == str(folder)
    identity, weights = (
        tokenizer_identity(str(folder), tmp_path),
        model_identity(str(folder), tmp_path / "memo"),
    )
    config = folder / "tokenizer_2" / "tokenizer_config.json"
    kept = config.read_text()
    config.write_text(kept + " ")
    assert tokenizer_identity(str(folder), tmp_path) != identity
    config.write_text(kept)
    shape = folder / "transformer" / "config.json"
    kept = shape.read_text()
    shape.write_text(kept + " ")
    assert model_identity(str(folder), tmp_path / "memo") != weights
    shape.write_text(kept)
    with pytest.raises(ModelError, match=r"neither config\.json nor model_index\.json"):
        check_path(str(tmp_path), tmp_path)


def test_prompts_are_measured_by_the_tokenizers_of_the_pipeline(folder: Path):
    counter = PromptLengths(str(folder), str(folder))
    assert counter.limit == TEXT_LENGTH
    assert counter.lengths(["seven", "a photo of the digit seven", "seven " * 30]) == [3, 8, 32]


def test_its_folder_is_named_by_the_code_that_makes_it(tmp_path: Path):
    made = embedded.embedded_folder("tiny-sd3", tmp_path)
    assert made.parent == tmp_path and len(made.name.removeprefix("tiny-sd3-")) == 12
    assert embedded.embedded_folder("tiny-vlm", tmp_path).name[-12:] != made.name[-12:]
    with pytest.raises(ModelError, match="tiny-sd3"):
        embedded.embedded_folder("tiny-sd4", tmp_path)
