"""Scoring models from the Hugging Face Hub: CLIP models, the small heads on top of them, and
weights in a single file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_core.errors import ModelError

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor, nn

    from rl_core.rewards.base import Sample

HEAD_WIDTHS = (1024, 128, 64, 16, 1)
"""Output widths of the linear layers of the head that the aesthetic predictor and ImageReward
share."""


def image_of(sample: Sample) -> Image:
    """Return the sample's image, in a scorer that only gets samples with one."""
    assert sample.image is not None
    return sample.image


class Clip:
    """A CLIP model and its processor (arXiv 2103.00020)."""

    def __init__(self, model: str, processor: str | None, device: str) -> None:
        """Load the model.

        Args: model, processor: folders or Hub names; by default the processor of the model.
        """
        from transformers import CLIPModel, CLIPProcessor

        self.device = device
        self.model = loaded(CLIPModel, model).to(device).eval()
        self.processor = loaded(CLIPProcessor, processor or model)

    def embed(self, images: Sequence[Image], texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Embed images and texts on the unit sphere, [B, E] each, in pairs. Texts are truncated at
        the model's limit."""
        import torch

        limit = self.model.config.text_config.max_position_embeddings
        inputs = self.processor(
            images=list(images),
            text=list(texts),
            return_tensors="pt",
            padding=True,
            truncation=True,
            max_length=limit,
        ).to(self.device)
        with torch.inference_mode():
            output = self.model(**inputs)
        return output.image_embeds.float(), output.text_embeds.float()

    def cosines(self, samples: Sequence[Sample]) -> Tensor:
        """Return the cosine similarity of each sample's image and prompt, [B]."""
        image_BE, text_BE = self.embed(
            [image_of(sample) for sample in samples], [sample.prompt for sample in samples]
        )
        return (image_BE * text_BE).sum(-1)


# Any: the classes of transformers share no base that declares `from_pretrained`.
def loaded(cls: Any, name: str) -> Any:
    """Return `cls.from_pretrained(name)`; `name@revision` selects a revision. Raises: ModelError
    when it is not available."""
    path, _, revision = name.partition("@")
    try:
        return cls.from_pretrained(path, revision=revision or None)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{name}: no {cls.__name__} there: {str(error).strip().splitlines()[0]}"
        ) from error


def weights_file(reference: str) -> dict[str, Tensor]:
    """Load the tensors of a file: a path, or `owner/name:file` on the Hub. Raises: ModelError when
    it is not available."""
    import torch

    path, (repository, _, name) = Path(reference), reference.rpartition(":")
    try:
        if not path.is_file() and repository:
            from huggingface_hub import hf_hub_download

            path = Path(hf_hub_download(repository, name))
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(
            f"{reference}: cannot be loaded: {str(error).strip().splitlines()[0]}"
        ) from error
    return content.get("state_dict", content)


def scoring_head(width: int) -> nn.Sequential:
    """Return linear layers from an embedding to a number, numbered as in the published weights
    (with dropout between them)."""
    from torch import nn

    layers: list[nn.Module] = []
    for index, out in enumerate(HEAD_WIDTHS):
        layers.append(nn.Linear(width, out))
        # At rest in a judge; it only keeps the numbers of the layers.
        layers += [nn.Dropout(0.0)] if index < 3 else []
        width = out
    return nn.Sequential(*layers)


def fill(module: nn.Module, weights: Mapping[str, Tensor], what: str) -> None:
    """Load weights into a module. Raises: ModelError naming the missing or unexpected ones."""
    missing, unexpected = module.load_state_dict(weights, strict=False)
    # Counters of positions are made, not learnt.
    missing = [name for name in missing if not name.endswith("position_ids")]
    if missing or unexpected:
        raise ModelError(
            f"{what}: missing {missing[:3]} ({len(missing)}), unknown {unexpected[:3]} "
            f"({len(unexpected)})"
        )


_OPEN_CLIP = (
    (r"^visual\.class_embedding$", "vision_model.embeddings.class_embedding"),
    (r"^visual\.positional_embedding$", "vision_model.embeddings.position_embedding.weight"),
    (r"^visual\.conv1\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual\.ln_pre\.", "vision_model.pre_layrnorm."),
    (r"^visual\.ln_post\.", "vision_model.post_layernorm."),
    (r"^visual\.proj$", "visual_projection.weight"),
    (r"^visual\.transformer\.resblocks\.", "vision_model.encoder.layers."),
    (r"^token_embedding\.", "text_model.embeddings.token_embedding."),
    (r"^positional_embedding$", "text_model.embeddings.position_embedding.weight"),
    (r"^transformer\.resblocks\.", "text_model.encoder.layers."),
    (r"^ln_final\.", "text_model.final_layer_norm."),
    (r"^text_projection$", "text_projection.weight"),
    (r"\.ln_([12])\.", r".layer_norm\1."),
    (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."),
    (r"\.attn\.", ".self_attn."),
)


def from_open_clip(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename weights from OpenCLIP's names to those of transformers' CLIPModel."""
    named: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        # Buffers that transformers makes for itself.
        if name in ("attn_mask", "visual.attn_mask"):
            continue
        projection = name in ("visual.proj", "text_projection")
        for pattern, replacement in _OPEN_CLIP:
            name = re.sub(pattern, replacement, name)
        if ".in_proj_" in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                named[name.replace("in_proj_", f"{part}_proj.")] = piece
        else:
            named[name] = tensor.T.contiguous() if projection else tensor
    return named
