"""A language model as a reward model: one score for a whole conversation, from the hidden state of
its last token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from rl_core.data.prepare.chat_template import ChatTemplate
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import ModelError
from rl_core.models.backbone import head_of
from rl_core.models.bundle import TextBundle
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.checks.comparison import Live, TokenRow
from rl_core.models.export.score_folder import export_scores, score_weight, scoring_class
from rl_core.models.heads.value_head import add_value_head
from rl_core.models.text_part import TextPartPolicy
from schemas.recipe import LoraConfig, ModelConfig

NUM_COMPARED = 2
"""Positions of each probe row whose scores are compared, since each takes a pass of its own."""
PROBE = [{"role": "user", "content": "."}, {"role": "assistant", "content": "."}]


class RewardBundle(TextBundle):
    """A language model with a score head; that of a folder of a reward model, which goes on from
    there, else a new one.

    Raises: ModelError when transformers has no sequence classifier of this family, or the model has
    more parts than its language model.
    """

    def __init__(self, source: str, config: ModelConfig) -> None:
        super().__init__(source, config)
        _add_score_head(self.policy, source)
        self.padding = settle_padding(self.tokenizer, config)

    def load_policy(self) -> CausalLMPolicy:
        """Load a new copy of the policy before training."""
        return _add_score_head(super().load_policy(), self.source)

    @property
    def compared_rows(self) -> list[TokenRow]:
        """Rows on which two copies of the model are compared, at their last positions."""
        rows: list[TokenRow] = []
        for row in super().compared_rows:
            rows.append(replace(row, num_reply=min(NUM_COMPARED, row.num_reply)))
        return rows

    def export(
        self, trained: dict[str, Tensor], lora: LoraConfig | None, out: Path, live: Live
    ) -> None:
        """Write the reward model as a folder of transformers' sequence classifier; see
        `export_scores`."""
        export_scores(self, trained, lora, out, live)


def _add_score_head(policy: CausalLMPolicy, source: str) -> CausalLMPolicy:
    """Put a score head in place of the vocabulary projection, in place."""
    model = policy.language_model
    if isinstance(policy, TextPartPolicy):
        raise ModelError(
            f"model.path {source}: {type(model).__name__} also has parts for pictures or sound; "
            "train a reward model from a language model"
        )
    scoring_class(model.config, source)
    known = score_weight(source)
    add_value_head(policy, bias=False)
    weight = head_of(model).weight
    if known is not None and known.shape != weight.shape:
        raise ModelError(
            f"model.path {source}: its score head has the shape {tuple(known.shape)}; expected "
            f"{tuple(weight.shape)}, one score per conversation"
        )
    with torch.no_grad():
        weight.copy_(_initial(weight, model) if known is None else known.to(weight))
    return policy


def _initial(weight: Tensor, model: torch.nn.Module) -> Tensor:
    """Return the same random head on every rank, as transformers draws a new classifier's."""
    std = float(getattr(model.config, "initializer_range", 0.02))
    return torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)) * std


def settle_padding(tokenizer: Tokenizer, config: ModelConfig) -> int:
    """Return a padding token that no conversation ends with, and make it the tokenizer's.

    transformers' classifiers take the score of the last token that is not padding. A conversation
    that ends with the padding token would be scored one token early. Raises: ModelError when there
    is no such token.
    """
    text = ChatTemplate(tokenizer, config.chat_template_kwargs).conversation(PROBE)
    last = tokenizer.encode(text, add_special_tokens=False)[-1]
    names = ("pad_token", "unk_token", "bos_token", "eos_token")
    for name in (one for one in names if getattr(tokenizer, one) is not None):
        number: int = getattr(tokenizer, f"{name}_id")
        if number != last:
            tokenizer.pad_token = getattr(tokenizer, name)
            return number
    raise ModelError(
        f"model.path {config.path}: its conversations end with {tokenizer.decode([last])!r}, and "
        "its tokenizer has no other special token for padding; add one to the tokenizer"
    )
