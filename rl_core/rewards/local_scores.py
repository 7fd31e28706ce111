"""A reward model of transformers' sequence classifiers with one label, in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rl_core.data.prepare.chat_template import ChatTemplate
from rl_core.errors import ModelError
from rl_core.rewards.base import Unscored
from rl_core.rewards.hub import loaded


class LocalScores:
    """A loaded reward model with its tokenizer and chat template.

    Args: source: folder, or Hub name with an optional `@revision`. max_length: longest conversation
    in tokens; unset takes the model's number of positions.
    Raises: ModelError when it is not there, has no template, or has not one label.
    """

    def __init__(
        self,
        source: str,
        device: str,
        *,
        max_length: int | None,
        batch_size: int,
        template_kwargs: Mapping[str, object],
    ) -> None:
        from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

        config = loaded(AutoConfig, source)
        if config.num_labels != 1 or not any(
            name.endswith("ForSequenceClassification") for name in config.architectures or ()
        ):
            raise ModelError(
                f"{source}: a {', '.join(config.architectures or ['model'])} with "
                f"{config.num_labels} labels; expected a sequence classifier with one, as the "
                "domain reward_model trains"
            )
        self.tokenizer = loaded(AutoTokenizer, source)
        if self.tokenizer.chat_template is None:
            raise ModelError(f"{source}: the tokenizer has no chat template")
        self.template = ChatTemplate(self.tokenizer, template_kwargs)
        self.model = loaded(AutoModelForSequenceClassification, source).float().to(device).eval()
        if self.model.config.pad_token_id is None:
            raise ModelError(
                f"{source}: its config has no pad_token_id, by which its classifier finds the last "
                "token of a row; set one that no conversation ends with"
            )
        positions = getattr(config.get_text_config(), "max_position_embeddings", None)
        limits = [limit for limit in (max_length, positions) if limit is not None]
        self.max_length = min(limits, default=None)
        self.device, self.batch_size = device, batch_size
        self.num_truncated = 0
        """Conversations since the count was last taken of which only the end was read."""

    def __call__(
        self, conversations: Sequence[Sequence[Mapping[str, object]]]
    ) -> list[float | Unscored]:
        """Return the score of each conversation; rows of similar lengths are computed together. Of
        one that is too long only the end is read, and it is counted."""
        rows = [self._ids(messages) for messages in conversations]
        by_length = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        scores: list[float | Unscored] = [Unscored("not scored")] * len(rows)
        for first in range(0, len(rows), self.batch_size):
            batch = by_length[first : first + self.batch_size]
            for row, score in zip(batch, self._scores([rows[one] for one in batch]), strict=True):
                scores[row] = score
        return scores

    def _ids(self, messages: Sequence[Mapping[str, object]]) -> list[int]:
        text = self.template.conversation(messages)
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        if self.max_length is None or len(ids) <= self.max_length:
            return ids
        self.num_truncated += 1
        return ids[-self.max_length :]

    def _scores(self, rows: Sequence[list[int]]) -> list[float]:
        import torch

        from rl_core.data_proto import pad_rows

        pad = self.model.config.pad_token_id
        ids = pad_rows([torch.tensor(row) for row in rows], pad).to(self.device)
        used = pad_rows([torch.ones(len(row)).long() for row in rows], 0).to(self.device)
        with torch.inference_mode():
            return self.model(input_ids=ids, attention_mask=used).logits[:, 0].float().tolist()
