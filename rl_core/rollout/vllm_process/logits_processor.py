"""Leaves out improbable tokens in vLLM as the project's own engines do. vLLM loads this module by
its name, in each process that computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vllm.v1.sample.logits_processor import (  # pyright: ignore[reportMissingImports]
    LogitsProcessor,
)
from vllm.v1.sample.logits_processor.builtin import (  # pyright: ignore[reportMissingImports]
    process_dict_updates,
)

from rl_core.models.decoding.token_choice import LEFT_OUT, kept_tokens, steps_of
from rl_core.rollout.vllm_process.kept_tokens import CHOICE, NUMBER, Key, records
from schemas.sections.sampling import SamplingConfig

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class _Reply:
    """One reply that is being drawn."""

    key: Key
    choice: SamplingConfig
    token_ids: list[int]
    """Tokens so far, which vLLM appends to."""


class KeptTokens(LogitsProcessor):  # pyright: ignore[reportUntypedBaseClass]
    """Masks the logits of requests with a `CHOICE`, after the temperature."""

    def __init__(self, vllm_config: object, device: torch.device, is_pin_memory: bool) -> None:
        self.replies: dict[int, _Reply] = {}

    def is_argmax_invariant(self) -> bool:
        """True: the most probable token stays. Such processors run after the temperature."""
        return True

    def update_state(self, batch_update: object) -> None:
        """Follow the requests of the batch to their places."""
        process_dict_updates(self.replies, batch_update, _reply)

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Mask the logits [R, V], in place."""
        if not self.replies:
            return logits
        # All requests of a call have one choice.
        rows = sorted(self.replies)
        choice = self.replies[rows[0]].choice
        kept_RV = kept_tokens(logits[rows], choice)
        logits[rows] = logits[rows].masked_fill(~kept_RV, LEFT_OUT)
        for row, step in zip(rows, steps_of(kept_RV), strict=True):
            reply = self.replies[row]
            records.setdefault(reply.key, {})[len(reply.token_ids)] = step
        return logits


def _reply(params: Any, prompt_ids: list[int] | None, token_ids: list[int]) -> _Reply | None:
    extra = params.extra_args or {}
    if CHOICE not in extra:
        return None
    return _Reply((extra[NUMBER], params.seed), extra[CHOICE], token_ids)
