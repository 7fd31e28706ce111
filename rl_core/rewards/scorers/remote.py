"""A reward server, called over HTTP: `rl-train serve-rewards`, or another with the same protocol
(`protocol.py`)."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence

from pydantic import Field

from rl_core.rewards.base import Modality, Sample, Scorer, Unscored, reward_scorers
from rl_core.rewards.protocol import asked, read_answer
from rl_core.runtime.bounded_answers import read_bounded
from schemas.sections.numbers import Seconds

MAX_ANSWER_BYTES = 64 * 2**20
"""Most that is read of an answer, which holds a few numbers and reasons per sample."""


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
        import httpx

        url = config.url.rstrip("/")
        self.url = url if url.endswith("/score") else f"{url}/score"
        self._http = httpx.Client(
            trust_env=False, follow_redirects=False, timeout=config.request_timeout_s
        )

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        """Score samples. Raises: httpx.HTTPError, TimeoutError or ValueError when there
        is no usable answer."""
        import httpx

        start = time.monotonic()
        body = {
            "samples": [asked(sample, self.config.jpeg_quality) for sample in samples],
            "rewards": None if self.config.reward is None else [self.config.reward],
        }
        deadline = start + self.config.request_timeout_s
        with self._http.stream("POST", self.url, json=body) as response:
            answer = read_bounded(response, MAX_ANSWER_BYTES, deadline)
        if not response.is_success:
            reason = answer.decode("utf-8", "replace").strip()[:300]
            if response.has_redirect_location:
                reason = f"a redirect to {response.headers['location']}, which is not followed"
            raise httpx.HTTPStatusError(
                f"{self.url} answered {response.status_code} after "
                f"{time.monotonic() - start:.1f} s: {reason}",
                request=response.request,
                response=response,
            )
        scores, errors = read_answer(json.loads(answer), self.config.reward, len(samples))
        return [_one(score, error) for score, error in zip(scores, errors, strict=True)]

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _one(score: float, error: str | None) -> float | Unscored:
    if error is None and not math.isnan(score):
        return score
    return Unscored(error or "the server gave NaN without a reason")
