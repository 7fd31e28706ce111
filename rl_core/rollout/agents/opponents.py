"""Players of the seats that are not trained: frozen models, here or behind a server."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

import httpx
import torch

from rl_core.envs.seats import ServedSeat
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Reply, Request, Sampling, StopReason
from rl_core.models.locate import locate
from rl_core.rollout.agents.desk import Waiting
from rl_core.runtime.home import Home
from rl_core.runtime.secrets import redact
from rl_core.serving.served_model import KnownModel, ServedModel
from schemas.sections.policy import ModelConfig

AT_ONCE = 16
"""Requests that a server is sent at the same time."""
PAUSES_S = (1.0, 4.0, 0.0)
"""Pauses after each failed attempt; the last is given up."""
TIMEOUT_S = 120.0
TRY_AGAIN = (408, 409, 425, 429)


class Opponent(Protocol):
    """Player of a seat that is not trained."""

    @property
    def model(self) -> KnownModel:
        """The model as requests know it."""
        ...

    def answer(
        self, held: Sequence[Waiting], requests: Sequence[Request], sampling: Sampling
    ) -> list[Reply | str]:
        """Return a reply to each request, or why there is none. Args: held: the same requests, with
        their messages. sampling: the policy's."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class FrozenOpponent:
    """A model that is loaded next to the policy, and sampled as it is.

    Args: path: as in `model.path`. template_kwargs: variables of the policy's chat template.
    Raises: ModelError when it cannot be loaded.
    """

    def __init__(
        self, path: str, device: torch.device, template_kwargs: Mapping[str, object]
    ) -> None:
        source = locate(path, Home.default().models)
        config = ModelConfig(path=path, chat_template_kwargs=dict(template_kwargs))
        self.model = ServedModel(source, config, str(device))
        self.model.policy.requires_grad_(False)
        self._held = ExitStack()
        with torch.no_grad():
            self._packed = self._held.enter_context(self.model.policy.ready_to_decode())

    @torch.no_grad()
    def answer(
        self, held: Sequence[Waiting], requests: Sequence[Request], sampling: Sampling
    ) -> list[Reply | str]:
        """Return a reply to each request."""
        own = replace(
            sampling,
            eos_ids=self.model.eos_ids,
            pad_id=self.model.pad_id,
            records_support=False,
            records_routing=False,
        )
        device = self.model.device
        # Each request has its own seed.
        generator = torch.Generator(device).manual_seed(0)
        given = self.model.policy, list(requests), own, generator, device, self._packed
        return [*decode(*given, text_of=self.model.chat.decode)]

    def close(self) -> None:
        """Release the packed weights."""
        self._held.close()


class ServedOpponent:
    """A model behind a server with OpenAI's chat API.

    Args: model: the policy as requests know it, in whose tokens replies are counted.
    """

    def __init__(self, seat: ServedSeat, model: KnownModel) -> None:
        self.seat, self.model = seat, model
        key = os.environ.get(seat.key_variable)
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,
            follow_redirects=False,
            timeout=TIMEOUT_S,
        )

    def answer(
        self, held: Sequence[Waiting], requests: Sequence[Request], sampling: Sampling
    ) -> list[Reply | str]:
        """Return the server's replies, or what it said instead."""
        with ThreadPoolExecutor(AT_ONCE) as threads:
            work = []
            for one, request in zip(held, requests, strict=True):
                body = {
                    "model": self.seat.model,
                    "messages": one.turn.messages,
                    "max_tokens": sampling.limit(request),
                    "temperature": sampling.temperature,
                    "seed": (request.seed or 0) % 2**31,
                }
                work.append(threads.submit(self._one, body))
            return [self._reply(one.result(), sampling) for one in work]

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _one(self, body: dict[str, object]) -> tuple[str, str] | str:
        """Return text and finish reason, or what is wrong."""
        if not body["messages"]:
            return f"{self.seat.url} plays chats, and the agent asked for a completion"
        why = ""
        for pause_s in PAUSES_S:
            try:
                said = self._http.post(f"{self.seat.url}/chat/completions", json=body)
            except httpx.HTTPError as error:
                why = f"{self.seat.url} does not answer: {type(error).__name__}: {error}"
            else:
                if said.status_code == httpx.codes.OK:
                    return _read(self.seat.url, said)
                told = redact(said.text.strip()[:300])
                why = f"{self.seat.url} answered {said.status_code}: {told}"
                if said.status_code < 500 and said.status_code not in TRY_AGAIN:
                    return why
            time.sleep(pause_s)
        return why

    def _reply(self, said: tuple[str, str] | str, sampling: Sampling) -> Reply | str:
        if isinstance(said, str):
            return said
        text, reason = said
        ids = self.model.tokenizer.encode(text, add_special_tokens=False)
        if reason == "length" and ids:
            return Reply(ids, [0.0] * len(ids), StopReason.LENGTH)
        ids = [*ids, self.model.eos_ids[0]]
        return Reply(ids, [0.0] * len(ids), StopReason.EOS)


def _read(url: str, said: httpx.Response) -> tuple[str, str] | str:
    try:
        choice = said.json()["choices"][0]
        return str(choice["message"].get("content") or ""), str(choice.get("finish_reason"))
    except (ValueError, LookupError, TypeError, AttributeError):
        return f"{url} answered what is no chat completion: {redact(said.text[:200])}"
