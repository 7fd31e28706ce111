"""The folder of a compact unified model, as a diffusers pipeline: a decoder, its tokenizer, and an
SD3 transformer."""

from __future__ import annotations

from typing import Any

from diffusers.pipelines.pipeline_utils import DiffusionPipeline


class CompactUnifiedPipeline(DiffusionPipeline):
    """Pipeline of the parts, loaded and saved by diffusers; `CompactUnified` defines their
    interaction.

    Args: decoder: a causal language model of transformers. context_length: number of states that
    condition the transformer.
    """

    model_cpu_offload_seq = "decoder->transformer->vae"

    def __init__(
        self,
        decoder: Any,
        tokenizer: Any,
        transformer: Any,
        vae: Any,
        scheduler: Any,
        context_length: int = 77,
    ) -> None:
        super().__init__()
        self.register_modules(
            decoder=decoder,
            tokenizer=tokenizer,
            transformer=transformer,
            vae=vae,
            scheduler=scheduler,
        )
        self.register_to_config(context_length=context_length)

    @property
    def vae_scale_factor(self) -> int:
        """Number of pixels per latent pixel, along each side."""
        vae: Any = self.vae  # type: ignore[attr-defined]
        return 2 ** (len(vae.config.block_out_channels) - 1)
