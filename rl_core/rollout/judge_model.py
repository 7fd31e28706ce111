"""A language model that judges in process: the probabilities of its next token, or words that it
decodes as a rollout does."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rl_core.data_proto import pad_rows
from rl_core.errors import RecipeError
from rl_core.models.backbone import taken_by
from rl_core.models.bundle import TextBundle
from rl_core.models.chat.stop_ids import configured_stop_ids
from rl_core.models.checks.row_length import longest_row_of
from rl_core.models.decoding.decode import Request as Context
from rl_core.models.decoding.decode import Sampling, decode, positions_of
from rl_core.models.locate import locate, model_identity
from rl_core.rewards.judging.requests import Answer, Counts, NoAnswer, Request
from rl_core.rollout.chat.text import ChatFormat
from rl_core.runtime.home import Home
from schemas.sections.policy import ModelConfig

ROWS_AT_ONCE = 32


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
        prompts = [prompt for prompt, _ in asked]
        pad_id = self.tokenizer.pad_token_id
        ids_BP = pad_rows([torch.tensor(one) for one in prompts], pad_id, left=True)
        lengths_B = torch.tensor([len(one) for one in prompts])
        width = ids_BP.shape[1]
        mask_BP = (torch.arange(width)[None] >= width - lengths_B[:, None]).long()
        given = ids_BP.to(self.device), mask_BP.to(self.device), positions_of(mask_BP)
        inputs = self.policy.inputs(given[0], given[1], given[2].to(self.device), None)
        backbone = self.policy.backbone
        hidden_BPH = backbone(**taken_by(backbone, inputs), use_cache=False).last_hidden_state
        probs_BV = self.policy.logits(hidden_BPH[:, -1]).float().softmax(-1).cpu()
        answers = []
        for row, (prompt, request) in enumerate(asked):
            probs = {}
            for label, ids in self._label_ids(request.labels).items():
                probs[label] = float(probs_BV[row, ids].sum())
            text = ", ".join(f"P({label}) {value:.4f}" for label, value in probs.items())
            answers.append(Answer(text, probs, len(prompt), 1))
        return answers

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
