"""A reward server, called over HTTP: `rl-train serve-rewards`, or another with the same protocol
(`protocol.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pydantic import Field

from rl_core.rewards.base import Modality, Sample, Scorer, Unscored, reward_scorers
from rl_core.rewards.posting import open_client, posted
from rl_core.rewards.protocol import asked, read_answer
from schemas.sections.checks.numbers import Seconds


@reward_scorers.register("remote")
class RemoteScorer(Scorer):
    """One reward of the server, or the server's total.

    A server that cannot be reached or answers nonsense fails the batch, one that reports a failed
    item fails that item; the service retries both.
    """

    class Config(Scorer.Config):
        """Address and options of the server."""

        url: str = Field(pattern=r"^https?://")
        """Address of the server; `/score` is appended if it is missing."""
        reward: str | None = None
        """Key of one of the server's rewards; unset takes its weighted total."""
        request_timeout_s: Seconds = Field(default=60.0, gt=0)
        """Longest time for one request in seconds."""
        jpeg_quality: int = Field(default=95, ge=1, le=100)
        """JPEG quality of the images that are sent."""

    config: Config
    modalities = frozenset(Modality)

    def __init__(self, config: Config, device: str = "cpu") -> None:
        super().__init__(config, device)
        url = config.url.rstrip("/")
        self.url = url if url.endswith("/score") else f"{url}/score"
        self._http = open_client(config.request_timeout_s)

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score samples. Raises: httpx.HTTPError, TimeoutError or ValueError when there
        is no usable answer."""
        body = {
            "samples": [asked(sample, self.config.jpeg_quality) for sample in samples],
            "rewards": None if self.config.reward is None else [self.config.reward],
        }
        answer = posted(self._http, self.url, body, self.config.request_timeout_s)
        scores, errors = read_answer(answer, self.config.reward, len(samples))
        return [_one(score, error) for score, error in zip(scores, errors, strict=True)]

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _one(score: float, error: str | None) -> float | Unscored:
    if error is None and not math.isnan(score):
        return score
    return Unscored(error or "the server gave NaN without a reason")
