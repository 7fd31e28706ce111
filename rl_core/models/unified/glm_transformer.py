"""The diffusion transformer of GLM-Image, which draws the plan of the autoregressive part.

Its conditions are the plan, as one code for every 2 x 2 of its tokens, and the glyphs of quoted
text by a byte-level encoder. It reads the noise level of the schedule before its shift.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from rl_core.models.diffusion.base import Condition, DiffusionFamily, Size
from rl_core.models.diffusion.condition_images import check_images
from rl_core.models.diffusion.latents import unstandardised
from rl_core.models.diffusion.sizes import check_sides, check_single_frame

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from PIL.Image import Image

GLYPHS = "prompt_embeds"
"""Key of the embeddings of the quoted text, [L, D]."""
CODES, DROPPED = "prior_token_id", "prior_token_drop"
"""Keys of each token's code in the plan, and of the mask of tokens without one, [tokens]."""


class GlmTransformer(DiffusionFamily):
    """GLM-Image's transformer: a token is 2 x 2 of the latent; prompts keep their own length and
    are masked."""

    padded: ClassVar[tuple[str, ...]] = (GLYPHS,)

    def __init__(self, pipeline: DiffusionPipeline) -> None:
        super().__init__(pipeline)
        from rl_core.models.unified.glm_attention import MaskedAttention

        for block in pipeline.transformer.transformer_blocks:
            block.attn1.set_processor(MaskedAttention())

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the blocks; other modules stay unwrapped, since FSDP would round their time
        input."""
        # The blocks by diffusers' own list, which has no public name.
        return tuple(self.pipeline.transformer._repeated_blocks)

    @property
    def lora_targets(self) -> list[str]:
        """The attention layers, which both streams share."""
        return ["attn1.to_q", "attn1.to_k", "attn1.to_v", "attn1.to_out.0"]

    def encode(
        self, prompts: Sequence[str], images: Sequence[Image | None], size: Size
    ) -> list[Condition]:
        """Return the glyphs [L, D] of text that prompts quote, and no plan."""
        check_images(self.name, images, self.condition_images)
        return [self._without_plan(prompt, size) for prompt in prompts]

    def _without_plan(self, prompt: str, size: Size) -> Condition:
        # One by one: of several prompts the pipeline pads the shorter ones and tells nobody where.
        embeds_BLD, _ = self.pipeline.encode_prompt(
            prompt, do_classifier_free_guidance=False, device=self.device
        )
        num_tokens = self.num_tokens(size)
        return Condition(
            {
                # Conditions travel with the rows they are for.
                GLYPHS: embeds_BLD[0].cpu(),
                CODES: torch.zeros(num_tokens, dtype=torch.long),
                DROPPED: torch.ones(num_tokens, dtype=torch.bool),
            }
        )

    def latent_shape(self, size: Size) -> tuple[int, ...]:
        """Return [C, H, W]."""
        check_single_frame(self.name, size)
        check_sides(self.name, size, self.code_side)
        factor = self.pipeline.vae_scale_factor
        return self.config.in_channels, size.height // factor, size.width // factor

    @property
    def code_side(self) -> int:
        """Number of pixels per code of the plan, along each side."""
        return 2 * self.pipeline.vae_scale_factor * self.config.patch_size

    def shift(self, size: Size, num_steps: int = 50) -> float:
        """Return the shift of the pipeline's schedule, which grows with the square root of the
        number of tokens."""
        from diffusers.pipelines.glm_image.pipeline_glm_image import calculate_shift

        config = self.pipeline.scheduler.config
        if not config.get("use_dynamic_shifting"):
            return float(config.get("shift") or 1.0)
        mu = calculate_shift(
            self.num_tokens(size),
            config.get("base_image_seq_len", 256),
            config.get("base_shift", 0.25),
            config.get("max_shift", 0.75),
        )
        if config.get("time_shift_type", "exponential") == "exponential":
            return math.exp(mu)
        return mu

    def velocity(
        self,
        transformer: nn.Module,
        latents: Tensor,
        sigma_B: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the transformer's output, which is eps - x_0."""
        sides = [side * self.pipeline.vae_scale_factor for side in latents.shape[-2:]]
        # The levels of a schedule are shifted, the times that the transformer is told are not.
        shift, num_times = (
            self.shift(Size(*sides)),
            self.pipeline.scheduler.config.num_train_timesteps,
        )
        time_B = num_times * sigma_B / (shift - (shift - 1) * sigma_B) - 1
        used_BL = conditions[f"{GLYPHS}_mask"]
        return transformer(
            hidden_states=latents,
            encoder_hidden_states=conditions[GLYPHS],
            prior_token_id=conditions[CODES],
            prior_token_drop=conditions[DROPPED],
            timestep=time_B,
            target_size=sigma_B.new_tensor(sides).expand(len(latents), -1),
            crop_coords=sigma_B.new_zeros(len(latents), 2),
            attention_mask=None if used_BL.all() else used_BL,
            return_dict=False,
        )[0]

    def decode(self, latents: Tensor) -> Tensor:
        """Return images [B, 3, height, width]."""
        vae = self.pipeline.vae
        scaled = unstandardised(latents.unsqueeze(2), vae.config)[:, :, 0].to(vae.dtype)
        return (vae.decode(scaled, return_dict=False)[0].float() / 2 + 0.5).clamp(0, 1)
