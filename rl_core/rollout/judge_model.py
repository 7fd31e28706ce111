"""A language model that judges in process: the probabilities of its next token, or words that it
decodes as a rollout does."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_core.data_proto import pad_rows
from rl_core.errors import RecipeError
from rl_core.models.backbone import taken_by
from rl_core.models.bundle import TextBundle
from rl_core.models.chat.stop_ids import configured_stop_ids
from rl_core.models.checks.row_length import longest_row_of
from rl_core.models.decoding.decode import decode, positions_of
from rl_core.models.decoding.request import Request as Context
from rl_core.models.decoding.request import Sampling
from rl_core.models.layer_types import other_layers
from rl_core.models.locate import locate, model_identity
from rl_core.rewards.judging.requests import Answer, Counts, NoAnswer, Request
from rl_core.rollout.chat.text import ChatFormat
from rl_core.runtime.home import Home
from schemas.sections.policy import ModelConfig

if TYPE_CHECKING:
    from transformers.cache_utils import Cache

ROWS_AT_ONCE = 32
WORTH_KEEPING = 16
"""Fewest tokens of a common beginning that are read apart."""


@dataclass(frozen=True)
class _Start:
    """Tokens that many prompts begin with, and their KV cache."""

    token_ids: list[int]
    cache: Cache

    def begins(self, prompt: list[int]) -> bool:
        """Return True if a prompt begins with these tokens, and has more."""
        num_known = len(self.token_ids)
        return len(prompt) > num_known and prompt[:num_known] == self.token_ids

    def repeated(self, num_rows: int) -> Cache:
        """Return a copy of the cache for each row, to be appended to."""
        copied = copy.deepcopy(self.cache)
        copied.batch_repeat_interleave(num_rows)
        return copied


class LocalJudge:
    """A loaded language model that judges."""

    repeats = True

    def __init__(self, path: str, device: str) -> None:
        """Load the model. Args: path: as `model.path` of a recipe. Raises: ModelError."""
        home = Home.default()
        source = locate(path, home.models)
        self.path, self.device = path, torch.device(device)
        bundle = TextBundle(source, ModelConfig(path=path))
        self.tokenizer = bundle.tokenizer
        self.policy = bundle.policy.to(self.device).eval().requires_grad_(False)
        stop_ids = configured_stop_ids(self.policy.language_model)
        self.chat = ChatFormat(self.tokenizer, {}, stop_ids)
        self.identity = f"{path} {model_identity(source, home.data / 'memo')}"
        self.counts = Counts()
        longest = longest_row_of(self.policy.language_model)
        self._start: _Start | None = None
        self._longest = None if longest is None else longest.num_tokens

    def answer(self, requests: Sequence[Request]) -> Sequence[Answer | NoAnswer]:
        """Answer requests, those of similar length together. Raises: RecipeError on a label that is
        no token."""
        prompts = [self._encoded(request) for request in requests]
        answers: dict[int, Answer | NoAnswer] = {}
        for place, (prompt, request) in enumerate(zip(prompts, requests, strict=True)):
            room = None if self._longest is None else self._longest - request.max_tokens
            if room is not None and len(prompt) > room:
                answers[place] = NoAnswer(
                    f"the judge's prompt has {len(prompt)} tokens, and the judge takes {room}",
                    final=True,
                )
        left = [place for place in range(len(requests)) if place not in answers]
        left.sort(key=lambda place: (requests[place].labels, len(prompts[place])))
        for first in range(0, len(left), ROWS_AT_ONCE):
            some = left[first : first + ROWS_AT_ONCE]
            asked = [(prompts[place], requests[place]) for place in some]
            answers |= dict(zip(some, self._together(asked), strict=True))
        return [answers[place] for place in range(len(requests))]

    def close(self) -> None:
        """Leave the model to the garbage collector."""

    def _encoded(self, request: Request) -> list[int]:
        messages = [{"role": role, "content": text} for role, text in request.messages]
        return self.chat.encode(messages)

    def _together(self, asked: Sequence[tuple[list[int], Request]]) -> list[Answer]:
        if all(request.labels for _, request in asked):
            return self._next_tokens(asked)
        return [self._words(prompt, request) for prompt, request in asked]

    @torch.no_grad()
    def _next_tokens(self, asked: Sequence[tuple[list[int], Request]]) -> list[Answer]:
        """Return the probabilities of labels as the next token."""
        probs_BV = self.policy.logits(self._last_hidden([prompt for prompt, _ in asked]))
        probs_BV = probs_BV.float().softmax(-1).cpu()
        answers = []
        for row, (prompt, request) in enumerate(asked):
            probs = {}
            for label, ids in self._label_ids(request.labels).items():
                probs[label] = float(probs_BV[row, ids].sum())
            text = ", ".join(f"P({label}) {value:.4f}" for label, value in probs.items())
            answers.append(Answer(text, probs, len(prompt), 1))
        return answers

    def _last_hidden(self, prompts: list[list[int]]) -> Tensor:
        """Return the hidden states of the prompts' last tokens, [B, H].

        What all of them begin with, a judge's examples, is read once and kept for later questions.
        """
        start = self._start_of(prompts)
        num_known = 0 if start is None else len(start.token_ids)
        rest = [torch.tensor(one[num_known:]) for one in prompts]
        ids_BS = pad_rows(rest, self.tokenizer.pad_token_id)
        lengths_B = torch.tensor([len(one) for one in rest])
        own_BS = (torch.arange(ids_BS.shape[1])[None] < lengths_B[:, None]).long()
        mask_BP = torch.cat([torch.ones(len(rest), num_known, dtype=torch.long), own_BS], dim=1)
        positions_BS = positions_of(mask_BP)[:, num_known:]
        cache = None if start is None else start.repeated(len(rest))
        output = self._read(
            ids_BS, mask_BP, positions_BS, past_key_values=cache, use_cache=start is not None
        )
        return output.last_hidden_state[torch.arange(len(rest)), lengths_B - 1]

    def _start_of(self, prompts: list[list[int]]) -> _Start | None:
        """Return what all prompts begin with; None where it cannot be kept."""
        known = self._start
        if known is not None and all(known.begins(prompt) for prompt in prompts):
            return known
        num_shared = min(_num_shared(prompts), min(map(len, prompts)) - 1)
        if len(prompts) == 1 or num_shared < WORTH_KEEPING:
            return None
        if other_layers(self.policy.language_model):
            return None
        ids = torch.tensor([prompts[0][:num_shared]])
        mask = torch.ones_like(ids)
        output = self._read(ids, mask, positions_of(mask), use_cache=True)
        self._start = _Start(prompts[0][:num_shared], output.past_key_values)
        return self._start

    def _read(self, ids_BS: Tensor, mask_BP: Tensor, positions_BS: Tensor, **caching: Any) -> Any:
        """Return the backbone's output for tokens that follow those of a cache, if there is one."""
        device, backbone = self.device, self.policy.backbone
        inputs = self.policy.inputs(
            ids_BS.to(device), mask_BP.to(device), positions_BS.to(device), None
        )
        return backbone(**taken_by(backbone, inputs), **caching)

    def _label_ids(self, labels: Sequence[str]) -> dict[str, list[int]]:
        """Return the tokens that say each label: in any case, with or without a space before."""
        found: dict[str, list[int]] = {}
        for label in labels:
            written = {label, label.lower(), label.upper(), label.capitalize()}
            encoded = []
            for one in sorted(written):
                for space in ("", " "):
                    encoded.append(self.tokenizer.encode(space + one, add_special_tokens=False))
            found[label] = sorted({ids[0] for ids in encoded if len(ids) == 1})
            if not found[label]:
                raise RecipeError(
                    f"labels: {label!r} is no single token of the judge {self.path}; use a shorter "
                    "word, or read: regex"
                )
        return found

    def _words(self, prompt: list[int], request: Request) -> Answer:
        """Return what the judge says."""
        stop_ids = tuple(sorted(self.chat.stop_ids))
        sampling = Sampling(
            request.max_tokens, request.temperature, stop_ids, self.tokenizer.pad_token_id
        )
        generator = torch.Generator(self.device).manual_seed(request.seed)
        contexts = [Context(prompt, 1, request.max_tokens)]
        with self.policy.ready_to_decode() as packed:
            (reply,) = decode(self.policy, contexts, sampling, generator, self.device, packed)
        text = self.chat.decode(reply.token_ids)
        return Answer(text, None, len(prompt), len(reply.token_ids))


def _num_shared(rows: list[list[int]]) -> int:
    """Return the number of tokens with which all rows begin."""
    first, last = min(rows), max(rows)
    return next(
        (place for place, (one, two) in enumerate(zip(first, last, strict=False)) if one != two),
        min(len(first), len(last)),
    )
