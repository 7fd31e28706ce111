"""Number of tokens of a prompt for the text encoders of a pipeline, and their limit.

Pipelines truncate a longer prompt and continue, so prompts are measured before training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl_core.models.diffusion.bundle import pipeline_index, snapshot

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class PromptLengths:
    """Counts with all tokenizers of a pipeline; text that a family adds to a prompt is not counted.

    Args: source: result of `rl_core.models.locate`. path: the recipe's, for messages.
    Raises: ModelError when it is not a pipeline.
    """

    def __init__(self, source: str, path: str) -> None:
        import transformers

        folder = snapshot(source, path)
        parts = {}
        for name, part in pipeline_index(folder).items():
            if name.startswith("tokenizer"):
                parts[name] = part
        loaded = []
        for name, part in parts.items():
            if part[1] is not None:
                loaded.append(
                    getattr(transformers, str(part[1])).from_pretrained(
                        folder / name, local_files_only=True
                    )
                )
        # Some families keep a processor in the tokenizer's place.
        self.tokenizers: list[PreTrainedTokenizerBase] = [
            getattr(tokenizer, "tokenizer", tokenizer) for tokenizer in loaded
        ]

    @property
    def limit(self) -> int:
        """Smallest limit of the tokenizers, as saved with the model."""
        return min(int(tokenizer.model_max_length) for tokenizer in self.tokenizers)

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text by the tokenizer that needs most, including start and
        end."""
        # `verbose` would warn of every prompt over the limit, which is the caller's question.
        counts = []
        for tokenizer in self.tokenizers:
            counts.append([len(ids) for ids in tokenizer(list(texts), verbose=False)["input_ids"]])
        return [max(lengths) for lengths in zip(*counts, strict=True)]
