"""Every diffusion family does with its pipeline what the pipeline does itself; on tiny models of
the real classes.

Every property is tried on every pipeline. The pipelines sample one prompt at a time, the families
all in one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from rl_core.errors import ModelError
from rl_core.models.adapters.lora import TRAINED, inject_lora
from rl_core.models.diffusion.base import DiffusionFamily, Size
from rl_core.models.diffusion.condition_images import ConditionImages
from rl_core.models.diffusion.families import family_class, family_classes
from rl_core.models.diffusion.latents import packed
from rl_core.models.diffusion.qwen_image import QwenImage
from rl_core.models.diffusion.wan import SECOND_ADAPTERS, Wan
from rl_core.sde import euler_step, sigmas
from schemas.recipe import LoraConfig
from tests.models import tiny_families as tiny
from tests.models import tiny_videos

PROMPTS = ["a photo of the digit seven", "red"]
NEGATIVE = "blue drawn by hand"
COLOURS = ["red", "navy"]
NUM_STEPS = 4
EDIT_PIXELS = 64 * 64
PICTURE, LARGE, VIDEO = Size(16, 24), Size(64, 96), Size(32, 48, num_frames=5)


@dataclass(frozen=True)
class Case:
    """A pipeline, what it makes in the tests, and how it takes what the family takes otherwise."""

    make: Callable[[], Any]
    size: Size
    told: dict[str, Any]
    """Arguments of the pipeline's call: its guidance."""
    scale: float
    """The same guidance as the family counts it."""
    negative: str = NEGATIVE
    entered: Callable[[Tensor], Tensor] = field(default=lambda latents: latents)
    """Latents as the pipeline's call takes them."""
    looped: Callable[[Tensor], Tensor] = field(default=lambda latents: latents)
    """Latents as its loop holds them."""
    given_frames: int = 0
    """Latent frames that the pipeline replaces after its loop, so that those in the loop mean
    nothing."""

    @cached_property
    def family(self) -> DiffusionFamily:
        """Made once for all tests."""
        return family_of(tiny.made(self.make))

    @cached_property
    def images(self) -> list[Any]:
        """A condition image per prompt, where the family takes one."""
        if self.family.condition_images is ConditionImages.NONE:
            return [None] * len(COLOURS)
        return [picture(colour, self.size) for colour in COLOURS]

    @cached_property
    def conditions(self) -> list[Any]:
        """Of the prompts, each with its image."""
        with torch.no_grad():
            return self.family.encode(PROMPTS, self.images, self.size)

    def noise(self) -> Tensor:
        """x_T of both prompts."""
        shape = self.family.latent_shape(self.size)
        return torch.randn(len(PROMPTS), *shape, generator=torch.Generator().manual_seed(1))


def family_of(pipeline: Any) -> DiffusionFamily:
    family = family_class(type(pipeline).__name__)(pipeline)
    if isinstance(family, QwenImage):
        family.reference_pixels = EDIT_PIXELS
    return family


def picture(colour: str, size: Size) -> Image.Image:
    image = Image.new("RGB", (size.width, size.height), colour)
    image.paste("white", (2, 4, size.width // 2, size.height - 2))
    return image


FLAT: dict[str, Any] = {"looped": lambda latents: latents.flatten(2).transpose(1, 2)}
PATCHES: dict[str, Any] = {"entered": packed, "looped": packed}
TRUE_CFG = {"negative_prompt": NEGATIVE, "true_cfg_scale": 3.0}
CFG = {"negative_prompt": NEGATIVE, "guidance_scale": 3.0}
CASES = {
    "flux2_klein": Case(tiny.flux2_klein, LARGE, {"guidance_scale": 3.0}, 3.0, negative="", **FLAT),
    "flux2": Case(tiny.flux2, LARGE, {"guidance_scale": 2.5}, 2.5, **FLAT),
    "qwen_image": Case(tiny.qwen_image, PICTURE, TRUE_CFG, 3.0, **PATCHES),
    "qwen_image_edit": Case(tiny.qwen_image_edit, Size(16, 16), TRUE_CFG, 3.0, **PATCHES),
    "wan": Case(tiny_videos.wan, VIDEO, CFG, 3.0),
    "wan_experts": Case(tiny_videos.wan_experts, VIDEO, CFG, 3.0),
    "wan_image": Case(tiny_videos.wan_image, VIDEO, CFG, 3.0),
    "wan_image_experts": Case(tiny_videos.wan_image_experts, VIDEO, CFG, 3.0),
    "wan_small_image": Case(tiny_videos.wan_small_image, VIDEO, CFG, 3.0, given_frames=1),
    "hunyuan_video": Case(tiny_videos.hunyuan_video, VIDEO, {"guidance_scale": 4.0}, 4.0),
    "z_image": Case(
        tiny.z_image, PICTURE, {"negative_prompt": NEGATIVE, "guidance_scale": 2.0}, 3.0
    ),
}


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors this small only wait for a second one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    """Each pipeline in turn."""
    return CASES[request.param]


def batched(family: DiffusionFamily, conditions: list[Any], scale: float) -> dict[str, Tensor]:
    read = {"guidance": torch.full((len(conditions),), scale)} if family.embedded_guidance else {}
    return family.batch(conditions) | read


def velocity(
    family: DiffusionFamily, latents: Tensor, sigma: float, conditions: list[Any], scale: float
) -> Tensor:
    sigma_B, batch = torch.full((len(latents),), sigma), batched(family, conditions, scale)
    return family.velocity(family.transformer, latents, sigma_B, batch)


def sampled(case: Case) -> Tensor:
    """Our loop: all prompts and both halves of the guidance in one batch."""
    family, latents = case.family, case.noise()
    conditions, halves = case.conditions, not case.family.embedded_guidance
    if halves:
        conditions = [
            *conditions,
            *family.encode([case.negative] * len(PROMPTS), case.images, case.size),
        ]
    levels = sigmas(NUM_STEPS, family.shift(case.size, NUM_STEPS)).tolist()
    for sigma, sigma_next in pairwise(levels):
        both = torch.cat([latents] * (1 + halves))
        predicted = velocity(family, both, sigma, conditions, case.scale)
        predicted = family.guide(*predicted.chunk(2), case.scale) if halves else predicted
        latents = euler_step(latents, predicted, sigma, sigma_next).sample
    return latents


def sampled_by_pipeline(case: Case, row: int) -> tuple[Tensor, Tensor]:
    """Latents and pictures of one prompt, with the schedule of the pipeline."""
    pipeline, held = case.family.pipeline, []

    def hold(_pipeline: Any, _step: int, _time: Any, values: dict[str, Any]) -> dict[str, Any]:
        held.append(values["latents"])
        return values

    size, image = case.size, case.images[row]
    made = pipeline(
        prompt=PROMPTS[row],
        height=size.height,
        width=size.width,
        num_inference_steps=NUM_STEPS,
        latents=case.entered(case.noise()[row : row + 1]),
        callback_on_step_end=hold,
        output_type="pt",
        return_dict=False,
        **case.told,
        **({"num_frames": size.num_frames} if case.family.makes_video else {}),
        **({} if image is None else {"image": image}),
    )[0]
    return held[-1], made


def follow(monkeypatch: pytest.MonkeyPatch, family: Wan, levels: Tensor) -> None:
    """Have Wan's pipelines, which take no levels and have no schedule without their solver, step
    along these."""
    scheduler = tiny.library().FlowMatchEulerDiscreteScheduler()
    own = scheduler.set_timesteps
    scheduler.set_timesteps = lambda _steps, device: own(sigmas=levels[:-1].tolist(), device=device)
    monkeypatch.setattr(family.pipeline, "scheduler", scheduler)


@torch.no_grad()
def test_loop_of_steps_equals_the_pipeline(case: Case, monkeypatch: pytest.MonkeyPatch):
    ours = sampled(case)
    pictures = case.family.decode(ours)
    if isinstance(case.family, Wan):
        follow(monkeypatch, case.family, sigmas(NUM_STEPS, case.family.shift(case.size)))
    from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit as edit

    whole = edit.calculate_dimensions
    monkeypatch.setattr(
        edit, "calculate_dimensions", lambda _area, ratio: whole(EDIT_PIXELS, ratio)
    )
    for row in range(len(PROMPTS)):
        latents, made = sampled_by_pipeline(case, row)
        mine, theirs = (
            held[:, :, case.given_frames :] for held in (case.looped(ours[row : row + 1]), latents)
        )
        torch.testing.assert_close(mine, theirs, atol=1e-4, rtol=0)
        torch.testing.assert_close(pictures[row : row + 1], made.float(), atol=1e-4, rtol=0)
    assert (ours[0] - ours[1]).abs().max() > 0.1


@torch.no_grad()
def test_decoded_samples_have_the_size_asked_for_in_0_to_1(case: Case):
    pictures = case.family.decode(case.noise())
    frames = (case.size.num_frames,) if case.family.makes_video else ()
    assert pictures.shape == (2, *frames, 3, case.size.height, case.size.width)
    assert 0 <= pictures.min() < pictures.max() <= 1


@torch.no_grad()
def test_velocity_does_not_depend_on_who_else_is_in_the_batch(case: Case):
    together = velocity(case.family, case.noise(), 0.6, case.conditions, case.scale)
    for row in range(2):
        alone = velocity(
            case.family,
            case.noise()[row : row + 1],
            0.6,
            case.conditions[row : row + 1],
            case.scale,
        )
        torch.testing.assert_close(together[row : row + 1], alone, atol=1e-5, rtol=0)


@torch.no_grad()
def test_prompt_image_and_guidance_scale_change_the_velocity(case: Case):
    family, noise = case.family, case.noise()[:1]
    base = velocity(family, noise, 0.6, case.conditions[:1], case.scale)
    others = [(case.conditions[1:], case.scale)] if case.images[0] is None else []
    if case.images[0] is not None:
        others.append((family.encode(PROMPTS[1:], case.images[:1], case.size), case.scale))
        others.append((family.encode(PROMPTS[:1], case.images[1:], case.size), case.scale))
    if family.embedded_guidance:
        others.append((case.conditions[:1], case.scale + 2))
    for conditions, scale in others:
        assert (velocity(family, noise, 0.6, conditions, scale) - base).abs().max() > 5e-4


def test_gradient_reaches_every_lora_target(case: Case):
    family = family_of(tiny.made(case.make))
    policy = adapted(family)
    batch = batched(family, case.conditions, case.scale)
    # Both sides of the boundary of two experts.
    family.velocity(
        policy.model, case.noise(), torch.tensor([0.95, 0.5]), batch
    ).square().sum().backward()
    reached = {
        name
        for name, value in policy.model.named_parameters()
        if value.grad is not None and value.grad.any()
    }
    for target in family.lora_targets:
        assert any(f".{target}.lora_B." in f".{name}" for name in reached), target


class Adapted:
    """A transformer whose adapters do something, as `inject_lora` sees a policy."""

    def __init__(self, family: DiffusionFamily) -> None:
        self.model: Any = family.transformer
        self.lora_targets = family.lora_targets


def adapted(family: DiffusionFamily) -> Adapted:
    policy = Adapted(family)
    inject_lora(policy, LoraConfig(rank=2, alpha=4), seed=0)
    with torch.no_grad():
        for name, value in policy.model.named_parameters():
            if "lora_B" in name:
                value.normal_(std=0.2, generator=torch.Generator().manual_seed(len(name)))
    return policy


def test_adapters_load_into_the_plain_pipeline(case: Case, tmp_path: Path):
    from peft import get_peft_model_state_dict

    family = family_of(tiny.made(case.make))
    policy = adapted(family)
    state = get_peft_model_state_dict(policy.model, adapter_name=TRAINED)
    state = {
        name.removeprefix("base_model.model."): value.contiguous() for name, value in state.items()
    }
    family.save_adapters(state, policy.model.peft_config[TRAINED].to_dict(), tmp_path)

    plain = tiny.made(case.make)
    plain.load_lora_weights(tmp_path, weight_name="pytorch_lora_weights.safetensors")
    if (tmp_path / SECOND_ADAPTERS).exists():
        plain.load_lora_weights(tmp_path, weight_name=SECOND_ADAPTERS, load_into_transformer_2=True)
    loaded = family_of(plain)
    batch, sigma_B = batched(family, case.conditions, case.scale), torch.tensor([0.95, 0.5])
    with torch.no_grad():
        trained = family.velocity(policy.model, case.noise(), sigma_B, batch)
        again = loaded.velocity(loaded.transformer, case.noise(), sigma_B, batch)
        before = case.family.velocity(case.family.transformer, case.noise(), sigma_B, batch)
    torch.testing.assert_close(again, trained, atol=1e-5, rtol=0)
    for row in range(2):
        assert (trained[row] - before[row]).abs().max() > 1e-3


def test_block_classes_exist(case: Case):
    present = {type(module).__name__ for module in case.family.transformer.modules()}
    assert case.family.block_classes
    assert set(case.family.block_classes) <= present


def test_wrong_sizes_are_refused_with_the_nearest_right_ones(case: Case):
    family, size = case.family, case.size
    step = next(
        step for step in range(1, 64) if makes(family, replace(size, height=size.height + step))
    )
    with pytest.raises(
        ModelError, match=rf"height {size.height + 1} .* use {size.height} or {size.height + step}"
    ):
        family.latent_shape(replace(size, height=size.height + 1))
    with pytest.raises(ModelError, match=f"width {size.width - 1} is not a multiple of {step}"):
        family.latent_shape(replace(size, width=size.width - 1))
    frames = "num_frames 6 .* use 5 or 9" if family.makes_video else "num_frames is 6 and must be 1"
    with pytest.raises(ModelError, match=frames):
        family.latent_shape(replace(size, num_frames=6))


def makes(family: DiffusionFamily, size: Size) -> bool:
    try:
        return bool(family.latent_shape(size))
    except ModelError:
        return False


def test_missing_and_surplus_condition_images_are_refused(case: Case):
    family, image = case.family, picture("red", case.size)
    if family.condition_images is ConditionImages.NONE:
        with pytest.raises(ModelError, match="prompt 1 has a condition image"):
            family.encode(PROMPTS, [None, image], case.size)
    if family.condition_images is ConditionImages.REQUIRED:
        with pytest.raises(ModelError, match="prompt 1 has no condition image"):
            family.encode(PROMPTS, [image, None], case.size)
    if family.condition_images is ConditionImages.OPTIONAL:
        with pytest.raises(
            ModelError, match="either every prompt of a run has a condition image or none has"
        ):
            family.batch(family.encode(PROMPTS, [image, None], case.size))
        assert "image_latents" not in family.batch(family.encode(PROMPTS, [None, None], case.size))


@pytest.mark.parametrize(
    "case",
    [
        "flux2_klein",
        "flux2",
        "qwen_image_edit",
        "wan_image",
        "wan_image_experts",
        "wan_small_image",
    ],
    indirect=True,
)
def test_condition_images_of_any_shape_make_one_batch(case: Case):
    images = [picture("red", Size(40, 90)), picture("red", Size(33, 20))]
    batch = case.family.batch(case.family.encode(["red", "red"], images, case.size))
    assert all(len(values) == 2 for values in batch.values())


def test_every_family_is_tried_and_found_by_its_pipelines():
    tried = {type(case.family).__name__ for case in CASES.values()}
    assert tried == {cls.__name__ for cls in family_classes()} - {"SD3"}
    assert {type(case.family.pipeline).__name__ for case in CASES.values()} == {
        name for cls in family_classes() if cls.name != "sd3" for name in cls.pipelines
    }
    with pytest.raises(ModelError, match=r"WanVideoPipeline are not supported \(did you mean"):
        family_class("WanVideoPipeline")
