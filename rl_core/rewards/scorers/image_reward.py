"""ImageReward (arXiv 2304.05977): BLIP reads the prompt with attention to the image, a small head
gives the score.

The published file holds BLIP in its authors' names; they are renamed and loaded into transformers'
class.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import Field

from rl_core.rewards.base import ImageScorer, Sample, Unscored, reward_scorers
from rl_core.rewards.hub import fill, image_of, loaded, scoring_head, weights_file

if TYPE_CHECKING:
    from torch import Tensor

MEAN, STD = 0.16717362830052426, 1.0333394966054072
"""Mean and standard deviation of the raw scores over the authors' data."""
MAX_TOKENS = 35

_BLIP = (
    (r"^visual_encoder\.cls_token$", "vision_model.embeddings.class_embedding"),
    (r"^visual_encoder\.pos_embed$", "vision_model.embeddings.position_embedding"),
    (r"^visual_encoder\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"^visual_encoder\.norm\.", "vision_model.post_layernorm."),
    (
        r"^visual_encoder\.blocks\.(\d+)\.norm([12])\.",
        r"vision_model.encoder.layers.\1.layer_norm\2.",
    ),
    (
        r"^visual_encoder\.blocks\.(\d+)\.attn\.proj\.",
        r"vision_model.encoder.layers.\1.self_attn.projection.",
    ),
    (r"^visual_encoder\.blocks\.(\d+)\.attn\.", r"vision_model.encoder.layers.\1.self_attn."),
    (r"^visual_encoder\.blocks\.", "vision_model.encoder.layers."),
)


@reward_scorers.register("image_reward")
class ImageRewardScorer(ImageScorer):
    """ImageReward; about -2 to 2, with the mean of the authors' images at 0."""

    class Config(ImageScorer.Config):
        """Settings of the ImageReward scorer."""

        model: str = "Salesforce/blip-itm-large-coco"
        """A BLIP of the same shape, for its configuration and processor: a folder or a Hub name."""
        weights: str = "THUDM/ImageReward:ImageReward.pt"
        """The scorer's own weights: a path or `owner/name:file`."""
        image_size: int = Field(default=224, ge=1)
        """Side of the model's input images in pixels."""
        batch_size: int = Field(default=16, ge=1)
        """Images that are scored together."""

    config: Config

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        from transformers import BlipConfig, BlipForImageTextRetrieval, BlipProcessor

        shape = loaded(BlipConfig, config.model)
        shape.vision_config.image_size = config.image_size
        # Any: its parts are declared as modules or tensors alike.
        self.blip: Any = BlipForImageTextRetrieval(shape)
        self.processor = loaded(BlipProcessor, config.model)
        self.head = scoring_head(shape.text_config.hidden_size)
        place = f"rewards.image_reward.weights {config.weights}"
        blip, head = split_weights(weights_file(config.weights))
        own = self.blip.state_dict()
        # The heads for matching and retrieval are not used, and not published.
        unused = {}
        for name, tensor in own.items():
            if name.startswith(("vision_proj", "text_proj", "itm")):
                unused[name] = tensor
        fill(self.blip, unused | blip, place)
        fill(self.head, head, place)
        self.blip.to(device).eval()
        self.head.to(device).eval()

    def score_images(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score images; prompts are truncated at 35 tokens, as in training."""
        import torch

        side = {"height": self.config.image_size, "width": self.config.image_size}
        inputs = self.processor(
            images=[image_of(sample) for sample in samples],
            text=[sample.prompt for sample in samples],
            size=side,
            padding="max_length",
            truncation=True,
            max_length=MAX_TOKENS,
            return_tensors="pt",
        ).to(self.device)
        with torch.inference_mode():
            seen = self.blip.vision_model(pixel_values=inputs["pixel_values"]).last_hidden_state
            read = self.blip.text_encoder(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                encoder_hidden_states=seen,
            ).last_hidden_state
            raw_B = self.head(read[:, 0])[:, 0]
        return ((raw_B - MEAN) / STD).tolist()


def split_weights(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split the published file into the weights of transformers' BLIP and of the head."""
    blip: dict[str, Tensor] = {}
    head: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.startswith("mlp.layers."):
            head[name.removeprefix("mlp.layers.")] = tensor
        elif name.startswith(("blip.visual_encoder.", "blip.text_encoder.")):
            name = name.removeprefix("blip.")
            for pattern, replacement in _BLIP:
                name = re.sub(pattern, replacement, name)
            if not name.endswith("position_ids"):
                blip[name] = tensor
    return blip, head
