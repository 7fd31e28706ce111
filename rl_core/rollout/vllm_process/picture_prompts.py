"""Prompts with pictures for vLLM: its own processor reads the pictures, and the tokens stay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rl_core.errors import RecipeError

if TYPE_CHECKING:
    from PIL.Image import Image


def with_pictures(llm: Any, token_ids: Sequence[int], pictures: Sequence[Image]) -> Any:
    """Return a prompt as vLLM's engine takes it. Args: token_ids: the context, with all tokens of
    every picture.

    Raises: RecipeError when vLLM's processor makes other tokens of a picture.
    """
    from vllm.inputs.engine import mm_input  # pyright: ignore[reportMissingImports]
    from vllm.multimodal.processing.context import (  # pyright: ignore[reportMissingImports]
        TimingContext,
    )
    from vllm.multimodal.processing.inputs import (  # pyright: ignore[reportMissingImports]
        ProcessorInputs,
    )

    renderer, ids = llm.llm_engine.renderer, list(token_ids)
    processor = renderer.get_mm_processor()
    shown = processor.info.parse_mm_data({"image": [*pictures]})
    inputs = ProcessorInputs(ids, shown, cache=renderer.mm_processor_cache)
    # vLLM's public way takes one token for each picture and writes the others itself. Replies and
    # observations stand between the pictures of several turns, so there is no such text; this can
    # go when it finds pictures in a prompt that has all their tokens.
    read = processor._cached_apply_hf_processor(inputs, TimingContext(enabled=False))
    found = processor._find_mm_placeholders(ids, read.prompt_updates).get("image", [])
    if len(found) != len(pictures):
        raise RecipeError(
            f"rollout.engine: vllm: of {len(pictures)} pictures of a prompt, vLLM's processor "
            f"finds {len(found)}: it makes other tokens of them than the trainer's; use dedicated"
        )
    return mm_input(ids, read.kwargs, read.hashes, {"image": [one.to_range() for one in found]})
