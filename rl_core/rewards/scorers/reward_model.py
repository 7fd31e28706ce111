"""A reward model: the score of the whole conversation, by a sequence classifier with one label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field, model_validator

from rl_core.rewards.base import Modality, Sample, Scorer, Unscored, reward_scorers
from rl_core.rewards.local_scores import LocalScores
from rl_core.rewards.served_scores import ServedScores
from schemas.sections.checks.numbers import Seconds


@reward_scorers.register("reward_model")
class RewardModelScorer(Scorer):
    """The score that a reward model gives to the conversation with the reply, as the domain
    `reward_model` trains it, rendered by the reward model's own chat template."""

    class Config(Scorer.Config):
        """The reward model, and how it is asked."""

        model: str = Field(min_length=1)
        """`models:/NAME@champion`, `models:/NAME/VERSION`, a folder or a Hub name of a sequence
        classifier with one label; with `url`, its name on the server."""
        url: str | None = Field(default=None, pattern=r"^https?://")
        """Address of a server with vLLM's `/pooling` (appended unless it is there) or `/classify`;
        unset loads the model here. For `rl-train serve-rewards` use the scorer `remote`."""
        device: str | None = None
        """Device of the model, such as `cuda:1`; unset takes that of the worker."""
        max_length: int | None = Field(default=None, ge=2)
        """Longest conversation in tokens. Of a longer one only the end is read, and
        `reward/<key>/truncated` counts it. Unset: the model's number of positions."""
        chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
        """Options of the reward model's chat template."""
        request_timeout_s: Seconds = Field(default=60.0, gt=0)
        """Longest time for one request to a server in seconds."""
        batch_size: int = Field(default=16, ge=1)
        """Conversations in one pass, or requests to a server that are under way together."""

        @model_validator(mode="after")
        def _server_has_its_own_settings(self) -> Self:
            if self.url is not None and (self.device or self.max_length):
                raise ValueError("url: a server has its own device and max_length; leave them out")
            if self.url is not None and self.url.rstrip("/").endswith("/score"):
                raise ValueError(
                    "url: /score is the protocol of the scorer remote; give /pooling or /classify"
                )
            return self

    config: Config
    modalities = frozenset({Modality.TEXT})

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, config.device or device)
        self._scores: LocalScores | ServedScores
        if config.url is not None:
            self._scores = ServedScores(
                config.url, config.model, config.request_timeout_s, config.batch_size
            )
        else:
            self._scores = LocalScores(
                config.model,
                self.device,
                max_length=config.max_length,
                batch_size=config.batch_size,
                template_kwargs=config.chat_template_kwargs,
            )

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score the conversations that end with a reply, and mark the others as unscored."""
        rows = [row for row, sample in enumerate(samples) if sample.replies]
        scores: list[float | Unscored] = [Unscored("the sample has no reply")] * len(samples)
        found = self._scores([samples[row].conversation for row in rows])
        for row, score in zip(rows, found, strict=True):
            scores[row] = score
        return scores

    def counts(self) -> dict[str, float]:
        """Return the number of truncated conversations since the last call."""
        if isinstance(self._scores, ServedScores):
            return {}
        num, self._scores.num_truncated = self._scores.num_truncated, 0
        return {"truncated": float(num)}

    def close(self) -> None:
        """Close a server's connections."""
        if isinstance(self._scores, ServedScores):
            self._scores.close()
