"""Model family: multimodal models (Gemma 3, Qwen2-VL, Mistral 3, Llama 4, …), trained on text
alone.

The language model inside is trained, with the head above it. Everything else stays unchanged: it is
not trained, gets no adapters, and is exported as it was. The code is independent of families: the
language model is the innermost transformers model with word embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import nn

from rl_core.errors import ModelError
from rl_core.models.backbone import backbone_name, backbone_of, head_of, holds, words_of
from rl_core.models.causal_lm import CausalLMPolicy

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class TextPartPolicy(CausalLMPolicy):
    """The language model of a multimodal model, as a policy."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._head_path = _path_of_head_model(model)
        super().__init__(model)
        self._part_path = _path_of_language_part(model)
        self._part_alone = False
        trained = {id(parameter) for parameter in self._trained_parameters()}
        for parameter in model.parameters():
            if id(parameter) not in trained:
                parameter.requires_grad_(False)

    @property
    def head_model(self) -> PreTrainedModel:
        """The innermost model with a head above a backbone: in some families a separate model
        (Llama 4)."""
        model: Any = self.language_model.get_submodule(self._head_path)
        return model

    @property
    def language_part(self) -> PreTrainedModel:
        """The language model without its head."""
        part: Any = self.language_model.get_submodule(self._part_path)
        return part

    @property
    def backbone(self) -> PreTrainedModel:
        """The module that computes hidden states: the language model, or all of the model if that
        gives other results."""
        if self._part_alone:
            return self.language_part
        return backbone_of(self.head_model)

    def compute_part_alone(self, alone: bool) -> bool:
        """Compute text with the language model alone. Returns: True if there is more around it."""
        self._part_alone = alone
        return self.language_part is not backbone_of(self.head_model)

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the classes that FSDP wraps one by one; vision towers are sharded as well, and
        never gathered."""
        own = {type(block).__name__ for block in _repeated(self.language_part)}
        # transformers names the blocks under no public name; this can go when it does.
        return tuple(sorted(own | set(self.language_model._no_split_modules or ())))

    def _trained_parameters(self) -> Iterator[nn.Parameter]:
        yield from self.language_part.parameters()
        yield from head_of(self.language_model).parameters()


def _path_of_head_model(model: PreTrainedModel) -> str:
    from transformers import PreTrainedModel

    for name, module in model.named_modules():
        if (
            isinstance(module, PreTrainedModel)
            and backbone_name(module)
            and module.get_output_embeddings() is not None
        ):
            return name
    raise ModelError(
        f"{type(model).__name__} cannot be trained on text: it has no language model with a head "
        "above a backbone"
    )


def _path_of_language_part(model: PreTrainedModel) -> str:
    """Return the path of the language model. Raises: ModelError when there is none."""
    from transformers import PreTrainedModel

    words = words_of(model)
    inside = []
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel) and _repeated(module) and holds(module, words):
            inside.append(name)
    if not inside or model.get_output_embeddings() is None:
        raise ModelError(
            f"{type(model).__name__} cannot be trained on text: it has no language model between "
            "embeddings of words and a head"
        )
    return max(inside, key=lambda name: name.count("."))


def _repeated(module: nn.Module) -> list[nn.Module]:
    """Return the blocks of the longest list of equal modules directly in a model."""
    lists = []
    for child in module.children():
        if isinstance(child, nn.ModuleList) and len(child):
            lists.append(list(child))
    equal = []
    for one in lists:
        if all(next(block.children(), None) is not None for block in one):
            equal.append(one)
    return max(equal, key=len, default=[])
