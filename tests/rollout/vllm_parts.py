"""What the tests of the vLLM engine build: a model that vLLM's CPU kernels take, and an engine that
can be asked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.distributed.isolated_actor import PROJECT
from rl_core.distributed.servers.vllm_engine import VllmEngine
from rl_core.models.decoding.choosing import Choosing
from rl_core.models.decoding.continuous.arrivals import Arrival
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Reply, Request, Sampling
from rl_core.models.decoding.token_choice import support_of
from rl_core.models.export.checksums import Checksum
from rl_core.train.weights.buckets import WeightVersion
from rl_core.trainers.domains.text import TOKENS, TRACK, TextTrainer, wire_replies
from rl_core.trainers.track import Wiring
from rl_core.trainers.wiring import place_policy
from schemas.recipe import Recipe
from schemas.sections.rollout import EngineKind, VllmConfig
from tests.rollout.built import built, engine_of
from tests.rollout.test_dedicated import ITEMS, NUM_PROMPTS, NUM_SIBLINGS

INTERPRETER = PROJECT / VllmConfig().python
MISSING = f"there is no {VllmConfig().python}; `make test-vllm` builds it"

ON_VLLM = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.usefixtures("ray_cluster"),
    pytest.mark.skipif(not INTERPRETER.is_file(), reason=MISSING),
]
"""Marks of tests that start servers."""

CONTEXT, ROWS_AT_ONCE, PAD = 96, 8, 0
# Both compute in float32; sums of the two differ in their order.
TOLERANCE = 2e-4
PROMPTS = [[5, 9, 30, 31, 8], list(range(20, 60)), [7] * 33]


class AskedEngine(VllmEngine):
    """Answers requests outside a rollout, by its server or by the weights that it holds for it."""

    target: str | None = None

    def ask(self, requests: list[Request], sampling: Sampling, seed: int) -> list[Reply]:
        with self.decoding(sampling, torch.Generator().manual_seed(seed)) as generate:
            return generate(requests)

    def ask_one_by_one(self, requests: list[Request], sampling: Sampling) -> list[Reply]:
        """Answers them as they come, the second half while the first is being sampled. Another is
        given up at once, and one is left behind."""
        wanted = [True]
        arrivals = [Arrival(request, lambda: True) for request in requests]
        extra = replace(requests[0], seed=99, room=60)
        said: dict[Arrival, Reply] = {}
        with self.decoding(replace(sampling, max_new_tokens=60), torch.Generator()) as sampler:
            sampler.answers().put([Arrival(extra, lambda: True)])
        with self.decoding(sampling, torch.Generator()) as sampler:
            answers = sampler.answers()
            answers.put([*arrivals[::2], Arrival(extra, lambda: wanted[0])])
            said |= dict(answers.step())
            wanted[0] = False
            answers.put(arrivals[1::2])
            while answers.num_running:
                said |= dict(answers.step())
        return [said[arrival] for arrival in arrivals]

    def expect(self, requests: list[Request], sampling: Sampling) -> list[Reply]:
        """What our own decoding says, in this process, with the weights in shared memory."""
        given = self.replica.policy, requests, sampling, torch.Generator(), self.replica.home
        return decode(*given, text_of=self.chat.decode)

    def follow(
        self, requests: Sequence[Request], replies: Sequence[Reply], sampling: Sampling
    ) -> list[Reply]:
        """Our own decoding, made to draw the tokens of given replies, one a request."""
        return [
            followed(self.replica.policy, request, reply, sampling)
            for request, reply in zip(requests, replies, strict=True)
        ]

    def read(self, token_ids: list[int]) -> str:
        return self.chat.decode(token_ids)

    def score(
        self, requests: Sequence[Request], replies: Sequence[Reply], temperature: float
    ) -> list[list[float]]:
        """Our log-probabilities of replies, one request and one reply a row."""
        scores = []
        for request, reply in zip(requests, replies, strict=True):
            ids = torch.tensor([[*request.token_ids, *reply.token_ids]])
            positions = torch.arange(ids.shape[1])[None]
            mask = torch.ones(1, len(reply.token_ids))
            with torch.no_grad():
                found = self.replica.policy(
                    ids, torch.ones_like(ids), positions, mask, temperature=temperature
                )[0]
            scores.append(found[0].tolist())
        return scores

    def server_pid(self) -> int:
        return self.server.pid

    def shared_prefill(self) -> tuple[int, int]:
        return self.server.call("shared_prefill")

    def tamper(self, parameter: str | None) -> None:
        self.target = parameter

    def finish_sync(
        self, version: WeightVersion, expected: dict[str, Checksum], dtype: torch.dtype
    ) -> None:
        if self.target is not None:
            numbers: Any = self.replica.parameters[self.target].data
            numbers.view(torch.int32).view(-1)[11] ^= 1
        super().finish_sync(version, expected, dtype)


def followed(policy: Any, request: Request, reply: Reply, sampling: Sampling) -> Reply:
    """Our own decoding of a reply whose tokens are given."""
    choosing = Choosing(
        sampling.choice, sampling.temperature, sampling.eos_ids, [request.token_ids]
    )
    ids = [*request.token_ids, *reply.token_ids]
    with torch.no_grad():
        hidden_NH = policy.hidden_states(
            policy.inputs(
                torch.tensor([ids]),
                torch.ones(1, len(ids)).long(),
                torch.arange(len(ids))[None],
                None,
            )
        )[0, len(request.token_ids) - 1 : -1]
        logits_NV = policy.logits(hidden_NH)
    log_probs, steps = [], []
    for token, logits_V in zip(reply.token_ids, logits_NV, strict=True):
        scores, (support,) = choosing.scores(logits_V[None])
        choosing.add(torch.tensor([token]))
        log_probs.append(float(scores.log_softmax(-1)[0, token]))
        steps.append(support)
    kept = support_of(steps) if sampling.records_support else None
    return Reply(reply.token_ids, log_probs, reply.stop_reason, kept)


class AskedTrainer(TextTrainer):
    """A text job with that engine."""

    def wire(self) -> Wiring:
        kind = replace(TOKENS, own_engines={EngineKind.VLLM: AskedEngine})
        return wire_replies(
            TRACK, self.recipe, *place_policy(kind, self.pool, self.recipe, self.source_model)
        )


def make_model(tokenizer_dir: Path, folder: Path) -> Path:
    """A random Llama with heads of 32, the smallest that vLLM's attention on CPUs knows."""
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_dir)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        # Peaked distributions: a wrong weight shows.
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def recipe(folder: Path, *, restarts: int = 2, **changes: Any) -> Recipe:
    rollout = {
        "engine": "vllm",
        "engine_restarts": restarts,
        "samples_per_prompt": NUM_SIBLINGS,
        "max_new_tokens": 8,
        "max_context_length": CONTEXT,
        "max_batch_size": ROWS_AT_ONCE,
        "sync": {"dtype": "float32", "bucket_bytes": 20_000},
        "vllm": {"kv_cache_gib": 0.125},
    }
    return Recipe.model_validate(
        {
            "name": "vowels",
            "model": {"path": str(folder)},
            "fsdp": {"param_dtype": "float32"},
            "optimizer": {"learning_rate": 2e-2},
            "data": {"train": ["unused"], "eval": ["unused"]},
            "rollout": rollout,
            "training": {
                "num_iterations": 1,
                "steps_per_iteration": 3,
                "prompts_per_step": NUM_PROMPTS,
            },
            "placement": {
                "num_devices": 3,
                "rollout_devices": 2,
                "threads_per_device": 1,
                "micro_batch_size": 8,
            },
        }
        | changes
    )


def running(settings: Recipe) -> AbstractContextManager[AskedTrainer]:
    return built(AskedTrainer(settings, settings.model.path, ITEMS))


def sampling(
    max_new_tokens: int = 8, temperature: float = 1.0, eos_ids: tuple[int, ...] = ()
) -> Sampling:
    return Sampling(max_new_tokens, temperature, eos_ids, PAD)


def requests(num_replies: int = 1, room: int = CONTEXT) -> list[Request]:
    return [Request(prompt, num_replies, min(room, CONTEXT - len(prompt))) for prompt in PROMPTS]


def tokens(replies: list[Reply]) -> list[list[int]]:
    return [reply.token_ids for reply in replies]


def distance(found: list[list[float]], expected: list[list[float]]) -> float:
    pairs = [
        (a, b) for x, y in zip(found, expected, strict=True) for a, b in zip(x, y, strict=True)
    ]
    return max(abs(a - b) for a, b in pairs)


def agree(trainer: AskedTrainer) -> list[list[int]]:
    """The greedy replies of all replicas, which are those of our own decoding, and so are their
    log-probabilities."""
    asked = requests(), sampling(24, temperature=0.0)
    expected = engine_of(trainer).expect(*asked)[0]
    for replies in engine_of(trainer).ask(*asked, 0):
        assert tokens(replies) == tokens(expected)
        assert (
            distance([one.log_probs for one in replies], [one.log_probs for one in expected])
            < TOLERANCE
        )
    return tokens(expected)
