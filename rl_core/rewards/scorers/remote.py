"""A reward server, called over HTTP: `rl-train serve-rewards`, or another with the same protocol
(`protocol.py`)."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from pydantic import Field

from rl_core.rewards.base import Modality, Sample, Scorer, Unscored, reward_scorers
from rl_core.rewards.posting import open_client, posted
from rl_core.rewards.protocol import asked, read_answer
from rl_core.runtime.home import Home
from rl_core.runtime.home_keys import REWARD_SERVER, key_of
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
        api_key: str | None = None
        """Key that the server asks for, such as `${oc.env:REWARD_KEY}`; unset gives a server of
        this machine the key of the home, which `rl-train serve-rewards` asks for."""
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
        if key := config.api_key or _key_of_home(url):
            self._http.headers["Authorization"] = f"Bearer {key}"

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


def _key_of_home(url: str) -> str | None:
    """Return the key of reward servers in this home; None for a server of another machine."""
    if urlsplit(url).hostname not in ("localhost", "127.0.0.1", "::1"):
        return None
    return os.environ.get("RL_TRAIN_API_KEY") or key_of(Home.default().root, REWARD_SERVER)


def _one(score: float, error: str | None) -> float | Unscored:
    if error is None and not math.isnan(score):
        return score
    return Unscored(error or "the server gave NaN without a reason")
