"""GLM-Image (zai-org): an autoregressive model writes the codes of an image, a diffusion
transformer draws them.

A plan is a small image of about 256 codes and then the image itself, a code for every 32 x 32
pixels, in the rows and columns given by the model's own positions. Codes are whole numbers, so that
drawing does not train the writer. The pipeline lets the model end a plan, or start another,
anywhere; here both marks are excluded from sampling. Its vision tower and quantiser are for editing
images, and stay unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.models.diffusion.base import Condition, Size
from rl_core.models.unified.base import PlanLayout, UnifiedFamily
from rl_core.models.unified.glm_transformer import CODES, DROPPED, GlmTransformer

if TYPE_CHECKING:
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from transformers import BatchFeature

    from rl_core.data.prepare.chat_template import Message


class GlmImage(UnifiedFamily, GlmTransformer):
    """GLM-Image: text to image through `GlmImagePipeline`."""

    name: ClassVar[str] = "glm_image"
    pipelines: ClassVar[tuple[str, ...]] = ("GlmImagePipeline",)
    writer: ClassVar[str] = "vision_language_encoder"
    tokenizer_folder: ClassVar[str] = "processor"

    @classmethod
    def pipeline_class(cls) -> type[DiffusionPipeline]:
        """Return diffusers' pipeline class."""
        from diffusers.pipelines.glm_image.pipeline_glm_image import GlmImagePipeline

        return GlmImagePipeline

    @property
    def frozen(self) -> list[nn.Module]:
        """The vision tower and the quantiser."""
        model = self.transformer.writer.model
        return [model.visual, model.vqmodel]

    @property
    def lora_targets(self) -> list[str]:
        """The linear layers of the text model, and the attention layers of the transformer."""
        return [
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_up_proj",
            "down_proj",
            *super().lora_targets,
        ]

    def layout(self, size: Size) -> PlanLayout:
        """Return the layout by the model's own positions: rows and columns of the small image's
        codes, then of the large one's."""
        self.latent_shape(size)
        config, model = self.transformer.writer.config, self.transformer.writer.model
        start = torch.tensor([[config.image_start_token_id]])
        # It leaves the positions of what is to be written on the module, counted from those of what
        # it is given. The private name can go when transformers returns them.
        grids = self._asked([{"role": "user", "content": ""}], size, {})["image_grid_thw"]
        model.get_rope_index(start, image_grid_thw=grids)
        offsets_AT = model._cached_decode_position_ids[0, :, :-1]
        return PlanLayout(
            self.config.prior_vq_quantizer_codebook_size, config.image_start_token_id, offsets_AT
        )

    def question(
        self,
        tokenizer: Tokenizer,
        messages: list[Message],
        size: Size,
        template_kwargs: Mapping[str, object],
    ) -> list[int]:
        """Return the conversation, the sizes of both images in codes, and the mark of an image's
        start."""
        return self._asked(messages, size, template_kwargs)["input_ids"][0].tolist()

    def _asked(
        self, messages: Sequence[Message], size: Size, template_kwargs: Mapping[str, object]
    ) -> BatchFeature:
        """Return the processor's output for a conversation, called as in the pipeline."""
        parts = []
        for turn in messages:
            parts.append({**turn, "content": [{"type": "text", "text": turn["content"]}]})
        sides = {"target_h": size.height, "target_w": size.width}
        return self.pipeline.processor.apply_chat_template(
            [parts],
            tokenize=True,
            return_dict=True,
            return_tensors="pt",
            processor_kwargs=sides,
            **template_kwargs,
        )

    def plan_conditions(
        self, prompts: Sequence[str], contexts: Sequence[list[int]], size: Size
    ) -> list[Condition | str]:
        """Return the glyphs of the prompt, and the codes of the large image, each for 2 x 2 tokens
        of the transformer."""
        glyphs = {}
        for text in dict.fromkeys(prompts):
            glyphs[text] = self.encode([text], [None], size)[0]
        layout = self.layout(size)
        planned: list[Condition | str] = []
        for prompt, context in zip(prompts, contexts, strict=True):
            planned.append(self._planned(glyphs[prompt], context, layout, size))
        return planned

    def _planned(
        self, glyphs: Condition, context: list[int], layout: PlanLayout, size: Size
    ) -> Condition | str:
        written = context[::-1].index(layout.start_id) if layout.start_id in context else 0
        if written != layout.num_tokens:
            return (
                f"the plan has {written} of {layout.num_tokens} tokens; raise "
                "rollout.max_context_length"
            )
        rows, columns = size.height // self.code_side, size.width // self.code_side
        codes = torch.tensor(context[-rows * columns :]).view(rows, columns)
        codes = codes.repeat_interleave(2, 0).repeat_interleave(2, 1).flatten()
        return Condition(
            {**glyphs.tensors, CODES: codes, DROPPED: torch.zeros_like(codes, dtype=torch.bool)}
        )
