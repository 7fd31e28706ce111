"""Ways of computing log-probabilities, and what was found out about them: see `probe`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import torch
from torch import Tensor


class Path(StrEnum):
    """A way of computing the model's own results."""

    PART = "language model alone"
    """The language model inside a multimodal model, without the modules around it."""
    KERNELS = "kernels"
    """Norms and MLPs of ours in the place of the model's."""
    PADDED = "padded"
    """Rows of different lengths in one batch."""
    PACKED = "packed"
    """Rows end to end in one sequence."""
    SHARED = "shared prompts"
    """Prefix sharing: the prompt of siblings computed once."""
    CACHED = "cache"
    """Token by token with a KV cache."""

    @property
    def instead(self) -> str:
        """The way that is used instead if it differs."""
        return {
            Path.PART: "text goes through the whole model",
            Path.KERNELS: "the model's own modules are used",
            Path.PADDED: (
                "rows are computed one by one, and each prompt's replies are decoded by themselves"
            ),
            Path.PACKED: "rows are padded",
            Path.SHARED: "the prompt is computed for every row",
            Path.CACHED: (
                "every token is decoded by the model's own forward over the whole row, which is "
                "slow"
            ),
        }[self]


@dataclass(frozen=True)
class Truth:
    """Probe rows, and the model's own results on them."""

    prompts: tuple[tuple[int, ...], ...]
    """Token ids of each prompt."""
    responses: tuple[tuple[tuple[int, ...], ...], ...]
    """Token ids of the responses to each prompt."""
    log_probs: tuple[tuple[float, ...], ...]
    """Log-probabilities of the tokens of every response, prompts in order."""
    spread: float
    """Standard deviation of the log-probabilities of all words, the unit of differences."""

    def batch(self, device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Return the rows in the form of a policy's forward: `input_ids`, `attention_mask`,
        `position_ids` [B, P+T], `response_mask` [B, T]."""
        width = max(map(len, self.prompts))
        longest = max(len(response) for group in self.responses for response in group)
        ids, used, acts = [], [], []
        for prompt, group in zip(self.prompts, self.responses, strict=True):
            for response in group:
                left, right = width - len(prompt), longest - len(response)
                ids.append([0] * left + [*prompt, *response] + [0] * right)
                used.append([0] * left + [1] * (len(prompt) + len(response)) + [0] * right)
                acts.append([1] * len(response) + [0] * right)
        used_BL = torch.tensor(used, device=device)
        return {
            "input_ids_BL": torch.tensor(ids, device=device),
            "attention_mask_BL": used_BL,
            "position_ids_BL": (used_BL.cumsum(-1) - 1).clamp_min(0),
            "response_mask_BT": torch.tensor(acts, device=device),
        }

    def largest_difference(self, log_probs_BT: Tensor) -> float:
        """Return the largest difference of any token, for a policy's results on `batch`; infinite
        if one is not a number."""
        return max(self.differences(log_probs_BT))

    def differences(self, log_probs_BT: Tensor) -> list[float]:
        """Return the difference of every token."""
        found = []
        for truth, row in zip(self.log_probs, log_probs_BT.float().tolist(), strict=True):
            for theirs, ours in zip(truth, row, strict=False):
                found.append(abs(theirs - ours) if ours == ours else float("inf"))
        return found


@dataclass(frozen=True)
class Paths:
    """Findings about a model."""

    truth: Truth | None = None
    """Probe rows; None for a model whose forward does not give log-probabilities."""
    refused: Mapping[Path, str] = field(default_factory=dict)
    """Ways that give different results, with the difference."""
    closed: Mapping[Path, str] = field(default_factory=dict)
    """Ways that were not tried, with the reason."""
    attention: str = "sdpa"
    """Attention implementation that was loaded."""
    asked_attention: str = "sdpa"
    """Attention implementation that was requested."""

    def why_not(self, path: Path) -> str | None:
        """Return the reason why a way is not used; None if it is."""
        return self.refused.get(path) or self.closed.get(path)

    def notes(self, name: str) -> list[str]:
        """Return a line for everything that is computed in an unusual way. Args: name: name of the
        model."""
        lines = []
        for path, why in self.refused.items():
            lines.append(f"{name}: {path} {why}; {path.instead}")
        if self.attention != self.asked_attention and self.attention == "eager":
            lines.append(
                f"{name} has no {self.asked_attention} attention; it runs with model.attention: "
                f"{self.attention}"
            )
        return lines
