"""A teacher behind a server with OpenAI's completions: log-probabilities of tokens that it is
sent."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx

from rl_core.algorithms.teacher import ServerApi, TeacherConfig
from rl_core.data.prepare.tokenizer import Tokenizer
from rl_core.errors import ModelError, ServiceError, Unreachable

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable with the server's key, if it wants one."""
AT_ONCE = 16
NUM_TRIES = 4
_TRY_AGAIN = (408, 429)


@dataclass(frozen=True)
class ServedTeacher:
    """A model on a server, asked for the log-probability of each token of whole rows."""

    config: TeacherConfig
    tokenizer: Tokenizer
    """Tokenizer of the policy, whose ids the server is sent."""
    pause_s: float = 1.0
    """Seconds before the second try of a request; each further pause is twice as long."""

    def log_probs(self, rows: Sequence[list[int]]) -> list[list[float]]:
        """Return the log-probability of each token after those before it; the first token's is 0.

        Raises: Unreachable when the server does not answer, ServiceError when it refuses or gives
        no log-probabilities, ModelError when it reads other tokens.
        """
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        timeout = self.config.request_timeout_s
        with (
            httpx.Client(headers=headers, timeout=timeout, trust_env=False) as client,
            ThreadPoolExecutor(AT_ONCE) as threads,
        ):
            try:
                return list(threads.map(partial(self._row, client), rows))
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    @property
    def url(self) -> str:
        """Address of the completions."""
        return f"{str(self.config.url).rstrip('/')}/completions"

    def _row(self, client: httpx.Client, row: list[int]) -> list[float]:
        asked: dict[str, object] = {
            "model": self.config.model,
            "prompt": row,
            "max_tokens": 1,
            "temperature": 0,
        }
        if self.config.api is ServerApi.ECHO:
            asked |= {"echo": True, "logprobs": 1}
        else:
            asked |= {"prompt_logprobs": 1}
        answer = self._answer(client, asked)
        try:
            choice = answer.json()["choices"][0]
            if self.config.api is ServerApi.ECHO:
                said = choice["logprobs"]["token_logprobs"][: len(row)]
                words = choice["logprobs"].get("tokens")
            else:
                places = choice.get("prompt_logprobs") or answer.json()["prompt_logprobs"]
                said = [0.0, *(self._of(place, one) for place, one in _pairs(places, row))]
                words = None
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ServiceError(
                f"{self.url} gives no log-probabilities of the prompt (algorithm teacher's api: "
                f"{self.config.api}): {answer.text:.300}"
            ) from error
        if len(said) != len(row) or None in said[1:]:
            raise ModelError(
                f"teacher {self.config.url} gives {len(said)} log-probabilities for {len(row)} "
                "tokens: it reads other tokens than the policy; serve a model with the same "
                "tokenizer"
            )
        if words is not None:
            self._check_words("".join(map(str, words[: len(row)])), row)
        return [0.0, *map(float, said[1:])]

    def _of(self, place: dict[str, Any], token: int) -> float:
        """Return one token's log-probability. Raises: ModelError when the server read another."""
        if str(token) not in place:
            raise ModelError(
                f"teacher {self.config.url} read token {next(iter(place), None)} where it was sent "
                f"{token}; serve a model with the policy's tokenizer"
            )
        return float(place[str(token)]["logprob"])

    def _check_words(self, text: str, row: list[int]) -> None:
        """Raises: ModelError when the server's tokens spell another text than the policy's."""
        ours = []
        for skipped in (False, True):
            ours.append(self.tokenizer.decode(row, skip_special_tokens=skipped))
        if _letters(text) not in map(_letters, ours):
            raise ModelError(
                f"teacher {self.config.url} reads the policy's tokens as {text[-60:]!r}, the "
                f"policy as {ours[0][-60:]!r}; serve a model with the policy's tokenizer"
            )

    def _answer(self, client: httpx.Client, body: dict[str, object]) -> httpx.Response:
        for left in reversed(range(NUM_TRIES)):
            try:
                answer = client.post(self.url, json=body)
            except httpx.InvalidURL as error:
                raise ServiceError(f"{self.url}: {error}; expected http://host:port/v1") from error
            except httpx.TransportError as error:
                if not left:
                    raise Unreachable(
                        f"teacher {self.url} does not answer after {NUM_TRIES} tries: {error}"
                    ) from error
            else:
                code = answer.status_code
                if answer.is_success:
                    return answer
                if 300 <= code < 500 and code not in _TRY_AGAIN:
                    raise ServiceError(
                        f"teacher {self.url} refuses the request ({code}): {answer.text:.300}"
                    )
                if not left:
                    raise Unreachable(f"teacher {self.url} answers {code}: {answer.text:.300}")
            time.sleep(self.pause_s * 2 ** (NUM_TRIES - 1 - left))
        raise AssertionError("unreachable")


def _pairs(places: Sequence[object], row: Sequence[int]) -> list[tuple[Any, int]]:
    return list(zip(places[1 : len(row)], row[1:], strict=True))


def _letters(text: str) -> str:
    """Return what every decoder writes alike: pieces of a character, spaces and marks are left
    out."""
    return "".join(letter for letter in text if letter.isascii() and letter.isalnum())
