"""Replies put together from the tokens of a stream."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_core.envs.calls.form import Call
from rl_core.models.decoding.request import StopReason
from rl_core.serving.engine import Likely, Token
from rl_core.serving.reply_text import UNFINISHED, ReplyText
from rl_core.serving.served_model import KnownModel

IMPOSSIBLE = -9999.0
"""Log-probability of a token that could not be drawn, as in OpenAI's API; JSON has no infinity."""


@dataclass
class Choice:
    """One reply, while it grows."""

    text: ReplyText
    tokens: list[Token] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)

    @property
    def reason(self) -> StopReason | None:
        """Reason why the reply ended; None while it goes on."""
        if self.tokens:
            return self.tokens[-1].stop_reason
        return None

    @property
    def finish(self) -> str | None:
        """`finish_reason` of the API."""
        if self.reason is None:
            return None
        if self.reason.is_truncated:
            return "length"
        return "stop"

    def add(self, token: Token, eos_ids: Sequence[int]) -> str:
        """Append a token. Returns: the text that is certain now."""
        self.tokens.append(token)
        is_end = token.token_id in eos_ids
        piece = "" if is_end else self.text.add(token.token_id)
        if token.stop_reason is not None:
            piece += self.text.end(at_stop=token.stop_reason is StopReason.STOP)
        self.pieces.append(piece)
        return piece

    def add_all(self, tokens: Sequence[Token], eos_ids: Sequence[int]) -> None:
        """Append all tokens of a reply that ended, whose text is one piece."""
        self.tokens += tokens
        self.text.extend([one.token_id for one in tokens if one.token_id not in eos_ids])
        self.pieces.append(self.text.end(at_stop=self.reason is StopReason.STOP))

    def extension(self) -> dict[str, Any]:
        """Return the tokens with the log-probabilities that they were sampled with."""
        return {
            "token_ids": [token.token_id for token in self.tokens],
            "token_log_probs": [token.log_prob for token in self.tokens],
        }


def chat_log_prob(token: Token, model: KnownModel) -> dict[str, Any]:
    """Return the entry of a token in `logprobs.content`."""
    likely = [_entry(one, log_prob, model) for one, log_prob in exact(token)]
    return _entry(token.token_id, token.log_prob, model) | {"top_logprobs": likely}


def exact(token: Token) -> Likely:
    """Return the most probable tokens, the sampled one with the number that it was sampled with."""
    likely = []
    for one, log_prob in token.likely:
        likely.append((one, token.log_prob if one == token.token_id else log_prob))
    return likely


def _entry(token_id: int, log_prob: float, model: KnownModel) -> dict[str, Any]:
    word = model.word(token_id)
    # Bytes of a part of a character are not known from its text.
    in_bytes = None if UNFINISHED in word else list(word.encode())
    return {"token": word, "logprob": finite(log_prob), "bytes": in_bytes}


def finite(log_prob: float) -> float:
    """Return a log-probability that JSON can hold."""
    return max(log_prob, IMPOSSIBLE)


def called(calls: list[Call], *, indexed: bool = False) -> list[dict[str, Any]]:
    """Return calls in OpenAI's form. Args: indexed: with their numbers, as in a stream."""
    return [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        | ({"index": number} if indexed else {})
        for number, call in enumerate(calls)
    ]


def usage(num_prompt: int, num_sampled: int) -> dict[str, int]:
    """Return the tokens that were read and sampled."""
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_sampled,
        "total_tokens": num_prompt + num_sampled,
    }
