"""Model family: vision-language models of transformers (image-text-to-text).

An image is a sequence of image tokens in the prompt; an encoder's features replace their
embeddings. All these models have `model.get_image_features`, a language model and `lm_head`. Their
differences are in `FAMILIES`.

Shapes: B rows, L positions, N image tokens, H hidden.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from rl_core.errors import ModelError
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.media import Distinct, PromptMedia, distinct, joined
from rl_core.models.model_inputs import ModelInputs, WordInputs
from schemas.sections.policy import ModelPart

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Family:
    """Paths of the parts of a class of models below `model.`, and their properties."""

    vision_tower: tuple[str, ...]
    projector: tuple[str, ...]
    language_model: str
    blocks: tuple[str, ...]
    """Classes of the repeated blocks of vision tower and language model; FSDP wraps each of
    them."""
    needs_grid_positions: bool = False
    """True if positions have three axes, which follow from the images' grids (M-RoPE, arXiv
    2409.12191)."""
    stacks_pictures_per_prompt: bool = False
    """True if the processor gives a prompt's images a separate axis, [1, images, ...]."""


def _idefics(prefix: str) -> Family:
    blocks = (f"{prefix}EncoderLayer", "LlamaDecoderLayer")
    return Family(
        ("vision_model",), ("connector",), "text_model", blocks, stacks_pictures_per_prompt=True
    )


def _qwen(name: str, language_block: str, projector: tuple[str, ...]) -> Family:
    vision = ("visual.patch_embed", "visual.pos_embed", "visual.blocks")
    return Family(
        vision,
        projector,
        "language_model",
        (f"{name}VisionBlock", language_block),
        needs_grid_positions=True,
    )


FAMILIES = {
    "idefics3": _idefics("Idefics3"),
    "smolvlm": _idefics("SmolVLM"),
    "qwen2_5_vl": _qwen("Qwen2_5_VL", "Qwen2_5_VLDecoderLayer", ("visual.merger",)),
    "qwen3_vl": _qwen(
        "Qwen3VL", "Qwen3VLTextDecoderLayer", ("visual.merger", "visual.deepstack_merger_list")
    ),
    "internvl": Family(
        ("vision_tower",),
        ("multi_modal_projector",),
        "language_model",
        ("InternVLVisionLayer", "Qwen2DecoderLayer"),
    ),
    "llava_onevision": Family(
        ("vision_tower",),
        ("multi_modal_projector", "image_newline"),
        "language_model",
        ("SiglipEncoderLayer", "Qwen2DecoderLayer"),
    ),
}
"""Families by the config's `model_type`."""

Features: TypeAlias = Tensor | Sequence[Tensor]
"""Encoded images: one tensor, or one of each image."""
TEXT_INPUTS = frozenset({"input_ids", "attention_mask", "mm_token_type_ids", "token_type_ids"})
"""Outputs of a processor that are not media."""
FROZEN_BY_DEFAULT = (ModelPart.VISION_TOWER,)


def family_of(model_type: str) -> Family:
    """Return the family of a `model_type`. Raises: ModelError when it is unknown."""
    if model_type not in FAMILIES:
        raise ModelError(
            f"vision-language models of type {model_type!r} are not supported; known: "
            f"{sorted(FAMILIES)}"
        )
    return FAMILIES[model_type]


def media_of(inputs: Mapping[str, Any], family: Family, image_token_id: int) -> PromptMedia | None:
    """Return the images in a processor's output for one prompt; None if it has none."""
    tensors = {}
    for name, value in inputs.items():
        if name not in TEXT_INPUTS and isinstance(value, Tensor):
            tensors[name] = value
    if family.stacks_pictures_per_prompt:
        tensors = {name: value.transpose(0, 1) for name, value in tensors.items()}
    num_tokens = int((inputs["input_ids"] == image_token_id).sum())
    if tensors:
        return PromptMedia(tensors, num_tokens)
    return None


class VLMPolicy(CausalLMPolicy):
    """A vision-language model as a policy: actions are the reply's tokens, images are part of the
    prompt.

    Args: blank: an image's media for passes without any, so that every rank runs the encoder.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        frozen: Sequence[ModelPart] = (),
        blank: PromptMedia | None = None,
    ) -> None:
        super().__init__(model)
        self.family = family_of(model.config.model_type)
        self.frozen, self.blank = tuple(frozen), blank
        for part in self.frozen:
            for module in self.part(part):
                module.requires_grad_(False)

    def part(self, part: ModelPart) -> list[nn.Module | nn.Parameter]:
        """Return the modules (or single parameters) of a part; those that this model lacks are left
        out."""
        paths = {
            ModelPart.VISION_TOWER: self.family.vision_tower,
            ModelPart.PROJECTOR: self.family.projector,
            ModelPart.LANGUAGE_MODEL: (self.family.language_model,),
        }[part]
        parts: list[nn.Module | nn.Parameter] = []
        for path in paths:
            if (found := _below(self.language_model.model, path)) is not None:
                parts.append(found)
        return parts

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the classes that FSDP wraps one by one."""
        return self.family.blocks

    @property
    def lora_targets(self) -> list[str]:
        """Full names of the linear layers of every part that is not frozen."""
        parts = []
        for part in ModelPart:
            if part not in self.frozen:
                parts.extend(self.part(part))
        modules = [module for module in parts if isinstance(module, nn.Module)]
        linear = set()
        for module in modules:
            for layer in module.modules():
                if isinstance(layer, nn.Linear):
                    linear.add(id(layer))
        return [name for name, module in self.model.named_modules() if id(module) in linear]

    def inputs(
        self,
        input_ids_BL: Tensor,
        attention_mask_BL: Tensor,
        position_ids_BL: Tensor,
        media_B: Sequence[PromptMedia | None] | None,
    ) -> ModelInputs:
        """Return keyword arguments of the model's forward, with images already encoded: each once
        for all rows that show it."""
        model, device = self.language_model.model, input_ids_BL.device
        shown = distinct(media_B if media_B is not None else [None] * len(input_ids_BL))
        inputs: ModelInputs = {
            "attention_mask": attention_mask_BL,
            "position_ids": position_ids_BL,
        }
        if not shown.media:
            return {**inputs, **self._without_pictures(input_ids_BL)}
        image_token = self.language_model.config.image_token_id
        is_image_BL = input_ids_BL == image_token
        rows = _Rows(shown, is_image_BL.sum(-1).tolist())
        encoded = model.get_image_features(**joined(shown.media, device), return_dict=True)
        word_H = model.get_input_embeddings()(torch.tensor(image_token, device=device))
        encoded.pooler_output = rows.spread(encoded.pooler_output, word_H)
        deep = getattr(encoded, "deepstack_features", None)
        if deep is not None:
            encoded.deepstack_features = [
                rows.spread(features, torch.zeros_like(word_H)) for features in deep
            ]
        if self.family.needs_grid_positions:
            in_prompt_BL = is_image_BL & (
                is_image_BL.cumsum(-1) <= torch.tensor(rows.shown_B, device=device)[:, None]
            )
            grids = torch.cat(
                [shown.media[place].tensors["image_grid_thw"] for place in rows.order]
            ).to(device)
            inputs["position_ids"], _ = model.get_rope_index(
                input_ids_BL,
                in_prompt_BL.int(),
                image_grid_thw=grids,
                attention_mask=attention_mask_BL,
            )
        return {**inputs, "input_ids": input_ids_BL, "mm_encoder_outputs": {"image": encoded}}

    def _without_pictures(self, input_ids_BL: Tensor) -> WordInputs:
        if self.blank is None:
            return {"input_ids": input_ids_BL}
        model = self.language_model.model
        encoded = model.get_image_features(
            **joined([self.blank], input_ids_BL.device), return_dict=True
        )
        features = [encoded.pooler_output, *(getattr(encoded, "deepstack_features", None) or [])]
        nothing = sum(_flat(one).sum() for one in features) * 0.0
        return {"inputs_embeds": model.get_input_embeddings()(input_ids_BL) + nothing}

    def why_no_packing(self) -> str | None:
        """Return the reason, always: the positions of images belong to rows."""
        return "the positions of pictures belong to rows"

    def why_no_prompt_sharing(self) -> str | None:
        """Return the reason, always: the positions of images belong to rows."""
        return "the positions of pictures belong to rows"


def _below(module: nn.Module | nn.Parameter | None, path: str) -> nn.Module | nn.Parameter | None:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def _flat(features: Features) -> Tensor:
    parts = [features] if isinstance(features, Tensor) else list(features)
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


class _Rows:
    """Assignment of features to the rows' image tokens.

    A reply may contain image tokens, too, if the model writes one: they are ordinary words there.
    Args: counts_B: image tokens of each row, including those of its reply.
    """

    def __init__(self, shown: Distinct, counts_B: list[int]) -> None:
        self.place_B, self.sizes = shown.place_B, [media.num_tokens for media in shown.media]
        self.order = [place for place in shown.place_B if place is not None]
        self.shown_B = [0 if place is None else self.sizes[place] for place in shown.place_B]
        self.words_B = [count - shown for count, shown in zip(counts_B, self.shown_B, strict=True)]

    def spread(self, features: Features, word_H: Tensor) -> Features:
        """Return the features of the distinct media, in the order of the rows that show them, in
        the container they came in."""
        parts = _flat(features).split(self.sizes)
        pieces = []
        for place, num_words in zip(self.place_B, self.words_B, strict=True):
            pieces += [parts[place]] if place is not None else []
            pieces += [word_H.to(parts[0].dtype).expand(num_words, -1)] if num_words else []
        rows_NH = torch.cat(pieces)
        if isinstance(features, Tensor):
            return rows_NH[None]
        return (rows_NH,)
