"""The folder of a compact unified model, as a diffusers pipeline: a decoder, its tokenizer, and an SD3 transformer."""

from __future__ import annotations

from typing import Any

from diffusers.pipelines.pipeline_utils import DiffusionPipeline


class CompactUnifiedPipeline(DiffusionPipeline):
    """Parts of the real classes, loaded and saved by diffusers; what they do together, `CompactUnified` says.

    Args: decoder: a causal language model of transformers. context_length: states that the transformer is shown.
    """

    model_cpu_offload_seq = "decoder->transformer->vae"

    def __init__(
        self, decoder: Any, tokenizer: Any, transformer: Any, vae: Any, scheduler: Any, context_length: int = 77
    ) -> None:
        super().__init__()
        self.register_modules(
            decoder=decoder, tokenizer=tokenizer, transformer=transformer, vae=vae, scheduler=scheduler
        )
        self.register_to_config(context_length=context_length)

    @property
    def vae_scale_factor(self) -> int:
        """Pixels of a picture's side to one of its latent."""
        vae: Any = self.vae  # type: ignore[attr-defined]
        return 2 ** (len(vae.config.block_out_channels) - 1)
