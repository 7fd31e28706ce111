"""Reward models behind a server with vLLM's API for them: `/pooling` and `/classify`.

Each conversation is sent as messages, in a request of its own, and rendered by the server's own
template. `/pooling` answers `{"data": [{"data": [score]}]}`, `/classify` `{"data": [{"probs":
[score]}]}`; of the latter vLLM gives sigmoid(score) unless it is started without an activation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from rl_core.rewards.base import Unscored
from rl_core.rewards.posting import open_client, posted

VALUES = {"pooling": "data", "classify": "probs"}
"""Last part of an address, and the key of the values in its answer."""


class ServedScores:
    """Client of a served reward model.

    Args: url: its address; `/pooling` is appended unless it ends with that or `/classify`. model:
    name of the model on the server. at_once: requests under way together.
    """

    def __init__(self, url: str, model: str, timeout_s: float, at_once: int) -> None:
        url = url.rstrip("/")
        self.url = url if url.rpartition("/")[2] in VALUES else f"{url}/pooling"
        self.model, self.timeout_s, self.at_once = model, timeout_s, at_once
        self._http = open_client(timeout_s)

    def __call__(
        self, conversations: Sequence[Sequence[Mapping[str, object]]]
    ) -> list[float | Unscored]:
        """Return the score of each conversation, or why it has none."""
        with ThreadPoolExecutor(self.at_once) as pool:
            return list(pool.map(self._one, conversations))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _one(self, messages: Sequence[Mapping[str, object]]) -> float | Unscored:
        import httpx

        body = {"model": self.model, "messages": [dict(message) for message in messages]}
        try:
            return self._read(posted(self._http, self.url, body, self.timeout_s))
        except (httpx.HTTPError, TimeoutError, ValueError) as error:
            return Unscored(f"{type(error).__name__}: {error}")

    def _read(self, answer: object) -> float:
        """Raises: ValueError when an answer is not one score."""
        data = answer.get("data") if isinstance(answer, Mapping) else None
        first = data[0] if isinstance(data, list) and len(data) == 1 else None
        if isinstance(first, Mapping):
            value = first.get(VALUES[self.url.rpartition("/")[2]])
        else:
            value = None
        while isinstance(value, list) and len(value) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(
                f"{self.url}: the answer holds no single score, but {str(answer)[:200]}; serve a "
                "reward model with one label"
            )
        return float(value)
