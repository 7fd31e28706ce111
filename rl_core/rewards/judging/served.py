"""A judge behind an OpenAI-compatible chat API.

A timeout, 408, 429 or a server error is a machine's fault: the request is sent again after growing
pauses, or after the pause that the server asks for, and leaves its sample without a verdict in the
end. Any other refusal is the user's, and ends the step with what the server said.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from rl_core.errors import ServiceError
from rl_core.rewards.judging.requests import Answer, Counts, NoAnswer, Request
from rl_core.rewards.judging.settings import MOST_TOP, JudgeSettings
from rl_core.runtime.bounded_answers import AnswerTooLong, read_bounded
from rl_core.runtime.secrets import redact

MAX_ANSWER_BYTES = 8 * 2**20
LONGEST_PAUSE_S = 60.0
_TRY_AGAIN = (408, 409, 425, 429)
_PUNCTUATION = " \t\n.*_`\"'()[]:"
"""Characters around a label that do not change which one it is."""


class ServedJudge:
    """A model that a server runs."""

    repeats = False

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        assert settings.url is not None
        url = settings.url.rstrip("/")
        self.url = url if url.endswith("/chat/completions") else f"{url}/chat/completions"
        self.identity = f"{self.url} {settings.model}"
        self.counts = Counts()
        key = os.environ.get(settings.key_variable)
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,
            follow_redirects=False,
            timeout=settings.request_timeout_s,
            limits=httpx.Limits(max_connections=settings.concurrency),
        )

    def answer(self, requests: Sequence[Request]) -> Sequence[Answer | NoAnswer]:
        """Answer requests, several at a time. Raises: ServiceError when the server refuses one."""
        with ThreadPoolExecutor(self.settings.concurrency) as threads:
            waiting = [threads.submit(self._one, request) for request in requests]
            try:
                return [one.result() for one in waiting]
            except ServiceError:
                threads.shutdown(cancel_futures=True)
                raise

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _one(self, request: Request) -> Answer | NoAnswer:
        pause_s, reason = self.settings.pause_s, ""
        for left in reversed(range(self.settings.num_tries)):
            try:
                code, headers, body = self._sent(request)
            except httpx.InvalidURL as error:
                raise ServiceError(f"{self.url}: {error}; expected http://host:port/v1") from error
            except (httpx.TransportError, TimeoutError, AnswerTooLong) as error:
                reason = f"{self.url} does not answer: {type(error).__name__}: {error}"
                asked_s = 0.0
            else:
                said = redact(body.decode("utf-8", "replace").strip()[:300])
                if 300 <= code < 500 and code not in _TRY_AGAIN:
                    raise ServiceError(f"{self.url} refuses the request ({code}): {said}")
                if code < 300:
                    return self._read(body, request)
                reason, asked_s = f"{self.url} answers {code}: {said}", _retry_after(headers)
            if left:
                self.counts.add("requests_again")
                time.sleep(min(max(pause_s, asked_s), LONGEST_PAUSE_S))
                pause_s *= 2
        return NoAnswer(reason)

    def _sent(self, request: Request) -> tuple[int, httpx.Headers, bytes]:
        body: dict[str, object] = {
            "model": self.settings.model,
            "messages": [{"role": role, "content": text} for role, text in request.messages],
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "seed": request.seed,
        }
        if request.labels:
            body |= {"logprobs": True, "top_logprobs": MOST_TOP}
        deadline = time.monotonic() + self.settings.request_timeout_s
        with self._http.stream("POST", self.url, json=body) as response:
            answer = read_bounded(response, MAX_ANSWER_BYTES, deadline)
        return response.status_code, response.headers, answer

    def _read(self, body: bytes, request: Request) -> Answer:
        """Return the answer. Raises: ServiceError when the server speaks another language."""
        try:
            found = json.loads(body)
            choice, usage = found["choices"][0], found.get("usage") or {}
            text = str(choice["message"].get("content") or "")
            tokens = []
            for name in ("prompt", "completion"):
                tokens.append(int(usage.get(f"{name}_tokens") or 0))
            probs = label_probs(choice, request.labels) if request.labels else None
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            said = redact(body.decode("utf-8", "replace")[:300])
            wanted = " with logprobs" if request.labels else ""
            raise ServiceError(
                f"{self.url} does not answer like an OpenAI-compatible server{wanted}: {said}"
            ) from error
        return Answer(text, probs, *tokens)


def label_probs(choice: Mapping[str, Any], labels: Sequence[str]) -> dict[str, float]:
    """Return the probability of each label at the last token that may be one.

    Args: choice: with the log-probabilities of the likeliest tokens at each position. Raises:
    LookupError when it has none.
    """
    positions = choice["logprobs"]["content"]
    if not positions:
        raise LookupError("no position has log-probabilities")
    known = {label.casefold(): label for label in labels}
    found = dict.fromkeys(labels, 0.0)
    for one in positions[-1]["top_logprobs"]:
        label = known.get(str(one["token"]).strip(_PUNCTUATION).casefold())
        if label is not None:
            found[label] += math.exp(min(0.0, float(one["logprob"])))
    return found


def _retry_after(headers: httpx.Headers) -> float:
    """Return the pause in seconds that a server asks for; 0 if it asks for none or for a date."""
    try:
        return max(0.0, float(headers.get("Retry-After", "0")))
    except ValueError:
        return 0.0
