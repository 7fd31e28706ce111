"""Answers of a server with an OpenAI-compatible chat API, played against the rows' environments.

The server applies its own chat template and counts its own tokens. A conversation of several turns
is sent as messages, with the model's replies in them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx

from rl_core.data.prepare.items import PlayedItem
from rl_core.envs import make
from rl_core.envs.answers import answer_read
from rl_core.envs.base import Message
from rl_core.envs.calls.awaited import result_of
from rl_core.envs.tool_env.served_reply import ServedReply, offered, step_of
from rl_core.errors import ServiceError, Unreachable
from rl_core.evaluation.rows import PlayedRow
from rl_core.evaluation.runner import ANSWER, ERROR
from rl_core.rollout.sample_ids import GROUP, SAMPLE, group_ids, sample_id
from schemas.sections.evaluation_sets import SampledReplies
from schemas.sections.sampling import EvaluationSampling

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable with the server's key, if it wants one."""
MAX_TURNS = 64
"""Turns after which a conversation that does not end is left."""
NUM_TRIES = 4
TIMEOUT_S = 600.0
_TRUNCATED = "length"
_CLIENT_ERRORS = range(400, 500)
_TRY_AGAIN = (408, 429)


@dataclass(frozen=True)
class Served:
    """A model behind an OpenAI-compatible server."""

    url: str
    """Address of the API, such as `http://127.0.0.1:8000/v1`."""
    model: str
    """Name of the model there."""
    options: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Options of each environment in the recipe."""
    stop: Sequence[str] = ()
    """Strings that end a reply, where the choice names none."""
    at_once: int = 16
    """Conversations that are played concurrently."""
    seed: int = 0
    pause_s: float = 1.0
    """Seconds before the second try of a request; each further pause is twice as long."""

    def play(
        self,
        items: Sequence[PlayedItem],
        max_new_tokens: int,
        choice: EvaluationSampling | None,
    ) -> list[PlayedRow]:
        """Return the rows of the replies to each prompt, as `runner.played_rows` does.

        Raises: ServiceError when the server refuses a request; Unreachable when it does not answer.
        """
        chosen = choice or EvaluationSampling()
        num = chosen.samples if isinstance(chosen, SampledReplies) else 1
        part = chosen.part if isinstance(chosen, SampledReplies) else 0
        groups = group_ids([item["uid"] for item in items])
        asked = []
        for item, group in zip(items, groups, strict=True):
            asked += [(item, group, number) for number in range(num)]
        key = os.environ.get(KEY_VARIABLE)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        base = self._request(max_new_tokens, chosen)
        limits = httpx.Limits(max_connections=self.at_once)
        with (
            httpx.Client(headers=headers, timeout=TIMEOUT_S, limits=limits) as client,
            ThreadPoolExecutor(self.at_once) as threads,
        ):

            def one(place: tuple[int, tuple[PlayedItem, str, int]]) -> PlayedRow:
                row, (item, group, number) = place
                seed = self.seed + part * 1_000_003 + row
                request = base | {"seed": seed}
                return self._conversation(client, item, request, group, sample_id(group, number))

            try:
                return list(threads.map(one, enumerate(asked)))
            except BaseException:
                # A server that refuses one request is not asked the others.
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def _request(self, max_new_tokens: int, choice: EvaluationSampling) -> dict[str, object]:
        request: dict[str, object] = {
            "model": self.model,
            "max_tokens": max_new_tokens,
            "temperature": choice.temperature,
        }
        stop = self.stop if choice.stop is None else choice.stop
        # What the server does unasked is left out, since not every one knows it.
        given = {}
        for name in choice.altered:
            if name != "stop":
                given[name] = getattr(choice, name)
        return request | given | ({"stop": list(stop)} if stop else {})

    def _conversation(
        self,
        client: httpx.Client,
        item: PlayedItem,
        request: dict[str, object],
        group: str,
        name: str,
    ) -> PlayedRow:
        """Play one prompt. An environment that fails fails its own row."""
        env_class = item["env_class"]
        row: PlayedRow = {
            GROUP: group,
            SAMPLE: name,
            "uid": item["uid"],
            "prompt": item["prompt"],
            "response": "",
            "ground_truth": item["env_extras"]["reward_spec"]["ground_truth"],
            "stop_reason": "eos",
            "reward": 0.0,
            "num_tokens": 0,
        }
        replies: list[str] = []
        metadata: Mapping[str, object] = {}
        try:
            env = make(env_class, self.options.get(env_class), item["env_extras"])
            try:
                messages, _ = result_of(env.init(list(item["prompt"])))
                request = request | offered(env)
                for _ in range(MAX_TURNS):
                    reply = self._reply(client, messages, request)
                    replies.append(reply.whole)
                    row["num_tokens"] += reply.num_tokens
                    row["stop_reason"] = "length" if reply.truncated else "eos"
                    turn = result_of(step_of(env, reply))
                    row["reward"] += float(turn["reward"])
                    metadata = turn.get("metadata") or {}
                    if turn["done"]:
                        break
                    messages = [*messages, reply.message, *turn["observations"]]
                answer = answer_read(metadata)
                if answer is not None:
                    row[ANSWER] = answer
            finally:
                if hasattr(env, "close"):
                    env.close()
        except (ServiceError, Unreachable):
            raise
        # Environments raise what they like; as in a rollout, it is their own row's failure.
        except Exception as error:
            row[ERROR] = f"{name}: {type(error).__name__}: {error}"
            row["reward"] = math.nan
        row["response"] = "\n".join(replies)
        return row

    def _reply(
        self, client: httpx.Client, messages: Sequence[Message], request: dict[str, object]
    ) -> ServedReply:
        """Return the server's reply."""
        url = f"{self.url.rstrip('/')}/chat/completions"
        body = request | {"messages": list(messages)}
        for left in reversed(range(NUM_TRIES)):
            try:
                answer = client.post(url, json=body)
            except httpx.InvalidURL as error:
                raise ServiceError(f"{self.url}: {error}; expected http://host:port/v1") from error
            except httpx.TransportError as error:
                if not left:
                    raise Unreachable(f"{url} does not answer: {error}") from error
            else:
                code = answer.status_code
                if code in _CLIENT_ERRORS and code not in _TRY_AGAIN:
                    raise ServiceError(f"{url} refuses the request ({code}): {answer.text:.300}")
                if answer.is_success:
                    return _read(answer, url)
                if not left:
                    raise Unreachable(f"{url} answers {code}: {answer.text:.300}")
            time.sleep(self.pause_s * 2 ** (NUM_TRIES - 1 - left))
        raise AssertionError("unreachable")


def _read(answer: httpx.Response, url: str) -> ServedReply:
    try:
        body = answer.json()
        chosen = body["choices"][0]
        text = chosen["message"].get("content") or ""
        calls = [dict(one) for one in chosen["message"].get("tool_calls") or []]
        num_tokens = int((body.get("usage") or {}).get("completion_tokens") or 0)
        return ServedReply(str(text), num_tokens, chosen.get("finish_reason") == _TRUNCATED, calls)
    except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
        raise ServiceError(
            f"{url} does not answer like an OpenAI-compatible server: {answer.text:.300}"
        ) from error
