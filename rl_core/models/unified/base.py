"""Base class of families of unified models, which only define their differences. Rollout, replay
and the joint step are shared code.

A model has two trained parts: one writes a plan in tokens, the `transformer` draws it by flow
matching. A family builds on one of `rl_core.models.diffusion`, which defines everything about the
transformer, `class Own(UnifiedFamily, Drawing)`, and adds the plan: its prompt, its allowed tokens
and their positions, and the transformer's conditions from it.

Shapes: B rows of L tokens, R rows being decoded, T tokens of a plan on A axes of positions, U
contexts (prompt and plan), N latents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor, nn

from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import ModelError
from rl_core.models.chat.tokenizer import encode_chat
from rl_core.models.diffusion.base import Condition, DiffusionFamily, Size

if TYPE_CHECKING:
    from diffusers.models.modeling_utils import ModelMixin
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline
    from transformers import PreTrainedModel

    from rl_core.data.prepare.chat_template import Message
    from schemas.recipe import ModelConfig

ROWS = "rows"
"""Key of the context index of each latent, [N]."""


@dataclass(frozen=True)
class PlanLayout:
    """A plan made of an image's own tokens: their number and positions follow from the size of the
    image."""

    num_codes: int
    """Number of the head's tokens, from the first, that a plan may contain."""
    start_id: int
    """Token before the plan; no plan contains it."""
    offsets_AT: Tensor
    """Positions of the plan's tokens, relative to the token before them, on the CPU."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens of every plan."""
        return self.offsets_AT.shape[1]

    def reply_positions(self, last_R: Tensor, step: int) -> Tensor:
        """Return [A, R, 1]; see `CausalLMPolicy.reply_positions`."""
        return (last_R + self.offsets_AT[:, step, None].to(last_R.device))[..., None]

    def positions(self, ids_BL: Tensor, position_ids_BL: Tensor) -> Tensor:
        """Return [A, B, L] of prompts and plans. Args: position_ids_BL: each token's number in its
        row."""
        is_start_BL = ids_BL == self.start_id
        start_B1 = position_ids_BL.masked_fill(~is_start_BL, -1).amax(1, keepdim=True)
        place_BL = position_ids_BL - start_B1 - 1
        planned_ABL = (
            start_B1 + self.offsets_AT.to(ids_BL.device)[:, place_BL.clamp(0, self.num_tokens - 1)]
        )
        return torch.where((start_B1 >= 0) & (place_BL >= 0), planned_ABL, position_ids_BL)


class Parts(nn.Module):
    """Writer and transformer as one module, which is sharded, trained and given adapters.

    Args: name: name of the writer among the pipeline's parts, and here.
    """

    def __init__(self, name: str, writer: PreTrainedModel, transformer: ModelMixin) -> None:
        super().__init__()
        self.name = name
        self.add_module(name, writer)
        self.transformer = transformer

    @property
    def writer(self) -> Any:
        """The transformers model that writes."""
        return getattr(self, self.name)

    def enable_gradient_checkpointing(self) -> None:
        """Enable gradient checkpointing in both parts."""
        self.writer.gradient_checkpointing_enable({"use_reentrant": False})
        self.transformer.enable_gradient_checkpointing()


class UnifiedFamily(DiffusionFamily):
    """Base of unified families, to put before the class of the transformer's family, whose
    `velocity` gets the plan's conditions."""

    writer: ClassVar[str]
    """Part of the pipeline that writes."""
    tokenizer_folder: ClassVar[str] = "tokenizer"
    """Folder of the writer's tokenizer in the pipeline's folder."""

    def __init__(self, pipeline: DiffusionPipeline) -> None:
        super().__init__(pipeline)
        self._parts = Parts(self.writer, getattr(pipeline, self.writer), pipeline.transformer)

    @classmethod
    def check(cls, source: str, config: ModelConfig) -> None:
        """Check a folder before anything of it is loaded. Raises: ModelError when it may not or
        cannot be loaded."""

    @classmethod
    def pipeline_class(cls) -> type[DiffusionPipeline]:
        """Return the class that loads a folder of the family."""
        raise NotImplementedError(f"{cls.__name__} loads no pipeline")

    @classmethod
    def load(cls, source: str, config: ModelConfig, absent: Mapping[str, None]) -> Self:
        """Load the family with a folder's parts in float32. Args: absent: parts that are left out.

        Raises: ModelError when the folder cannot be loaded.
        """
        try:
            pipeline = cls.pipeline_class().from_pretrained(
                source, local_files_only=True, dtype=torch.float32, **absent
            )
        except (OSError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ModelError(f"model.path {config.path}: cannot be loaded: {reason}") from error
        pipeline.set_progress_bar_config(disable=True)
        return cls(pipeline)

    @property
    def transformer(self) -> Any:
        """The trained module: both parts, as `Parts`."""
        return self._parts

    @property
    def frozen(self) -> list[nn.Module]:
        """Modules of the writer that are not trained."""
        return []

    @property
    def block_classes(self) -> tuple[str, ...]:
        """Names of the classes of both parts that FSDP wraps one by one."""
        return (*(self._parts.writer._no_split_modules or ()), *super().block_classes)

    def layout(self, size: Size) -> PlanLayout | None:
        """Return the layout of a plan for images of this size; None if plans are text, which ends
        where the model ends it.

        Raises: ModelError on a size that the model does not support.
        """
        return None

    def question(
        self,
        tokenizer: Tokenizer,
        messages: list[Message],
        size: Size,
        template_kwargs: Mapping[str, object],
    ) -> list[int]:
        """Return the tokens that ask for a plan, ending where it begins."""
        return encode_chat(tokenizer, messages, dict(template_kwargs))

    def plan_conditions(
        self, prompts: Sequence[str], contexts: Sequence[list[int]], size: Size
    ) -> list[Condition | str]:
        """Return the conditions from each plan for sampling and training alike, or the reason why
        it cannot be drawn. `encode` makes the same of a text alone, without a plan, such as the
        negative prompt of guidance.

        Args: prompts: prompts as written. contexts: tokens of prompt and plan.
        """
        raise NotImplementedError(f"{type(self).__name__} draws no plans")

    def read(self, parts: Parts, conditions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the transformer's conditions for N latents. Args: conditions: of U contexts, and
        `rows` [N]."""
        rows_N = conditions[ROWS]
        return {name: value[rows_N] for name, value in conditions.items() if name != ROWS}

    def velocity(
        self,
        transformer: nn.Module,
        latents: Tensor,
        sigma_B: Tensor,
        conditions: Mapping[str, Tensor],
    ) -> Tensor:
        """Return the transformer's velocity, given contexts or the result of `read`. Args:
        transformer: the parts."""
        parts: Any = transformer
        told = self.read(parts, conditions) if ROWS in conditions else conditions
        return super().velocity(parts.transformer, latents, sigma_B, told)
