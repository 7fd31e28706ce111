"""What each path of the product gives for a tiny model, and what plain transformers gives, each in its own process.

The truth is `AutoModelForCausalLM.from_pretrained(folder)(ids).logits`, a row at a time, without padding or cache, in a
process where nothing of the product has touched transformers. Everything else goes by the product's own entry points.

Axes: B rows, P prompt positions, T response positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.forks import tried
from benchmarks.model_families import FIRST_WORD, PAD, VOCABULARY, auto_class
from rl_core.data_proto import DataProto
from rl_core.rank_info import RankInfo, TrainTopology

COOL = 0.7
"""A temperature besides 1."""
PROMPTS, RESPONSES = (3, 14, 9, 6), ((12, 4, 1), (7, 2), (5,), (10, 10))
"""Lengths of the rows: of each prompt, and of the responses to it."""
NUM_NEW, NUM_REPLIES = 11, 3
ENDS = tuple(range(FIRST_WORD, VOCABULARY, 9))
"""Words that end a sampled reply, so that rows leave the batch one after the other."""
Row = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt, and of a response to it."""
Reply = tuple[Row, list[float]]
"""A row that was sampled, and what sampling said its tokens' log-probabilities were."""


Numbers = list[list[float]]
"""Of every row, token by token."""


@dataclass
class Found:
    """What a path gave."""

    log_probs: Numbers = field(default_factory=list)
    """Of the rows' responses."""
    entropies: Numbers = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    """Of a path that samples."""
    cool: Found | None = None
    """The same at another temperature,"""
    cool_replies: list[Reply] = field(default_factory=list)
    """and of sampling."""
    synced: dict[str, Any] = field(default_factory=dict)
    """What replicas say that were sent the weights, by the mode of sync; `Failed` where that failed."""
    falls_back: str = ""
    """Why another path was taken, if one was."""
    spread: float = 0.0
    """Standard deviation of the log-probabilities of all words."""


def rows() -> list[Row]:
    """The same for every family: words that mean nothing special, prompts in order, siblings adjacent."""
    generator = torch.Generator().manual_seed(0)

    def draw(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(FIRST_WORD, VOCABULARY, (length,), generator=generator).tolist())

    found: list[Row] = []
    for length, lengths in zip(PROMPTS, RESPONSES, strict=True):
        prompt = draw(length)
        found += [(prompt, draw(one)) for one in lengths]
    return found


def batch(some: list[Row]) -> DataProto:
    """Rows as a rollout gives them, with advantages."""
    width, longest = (max(len(row[side]) for row in some) for side in (0, 1))
    ids, used, acts = [], [], []
    for prompt, response in some:
        left, right = width - len(prompt), longest - len(response)
        ids.append([PAD] * left + [*prompt, *response] + [PAD] * right)
        used.append([0] * left + [1] * (len(prompt) + len(response)) + [0] * right)
        acts.append([1] * len(response) + [0] * right)
    used_BL, acts_BT = torch.tensor(used), torch.tensor(acts)
    return DataProto.from_dict(
        {
            "input_ids": torch.tensor(ids),
            "attention_mask": used_BL,
            "position_ids": (used_BL.cumsum(-1) - 1).clamp_min(0),
            "response_mask": acts_BT,
            "rollout_log_probs": -3.0 * acts_BT,
            "advantages": torch.randn(len(some), 1, generator=torch.Generator().manual_seed(1)) * acts_BT,
        }
    )


# The truth.


def plain(folder: str, model_type: str, *several: tuple[list[Row], float]) -> list[Found]:
    """What transformers itself says of rows at a temperature."""
    model = auto_class(model_type).from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return [_said(model, some, temperature) for some, temperature in several]


def _said(model: Any, some: list[Row], temperature: float) -> Found:
    found, spreads = Found(), []
    for prompt, response in some:
        ids = torch.tensor([[*prompt, *response]])
        logits_TV = model(ids).logits[0, len(prompt) - 1 : -1].float() / temperature
        all_TV = logits_TV.log_softmax(-1)
        found.log_probs.append(all_TV.gather(-1, ids[0, len(prompt) :, None])[:, 0].tolist())
        found.entropies.append((-(all_TV.exp() * all_TV).sum(-1)).tolist())
        spreads.append(float(all_TV.std()))
    found.spread = sum(spreads) / len(spreads)
    return found


# The product.


def bundle_of(folder: str) -> Any:
    """The model as workers load it that train on text."""
    from rl_core.models.bundle import TextBundle
    from schemas.recipe import ModelConfig

    return TextBundle(folder, ModelConfig(path=folder))


def backend_of(folder: str, rank_info: RankInfo, lora: Any = None) -> Any:
    """A backend in float32."""
    from rl_core.train.fsdp import FSDPBackend
    from schemas.recipe import FSDPConfig, LrSchedulerConfig, OptimizerConfig

    return FSDPBackend(
        bundle_of(folder),
        FSDPConfig.model_validate({"param_dtype": "float32"}),
        OptimizerConfig(learning_rate=0.02, eps=1e-4),
        LrSchedulerConfig(),
        lora,
        total_steps=2,
        seed=0,
        with_reference=False,
        rank_info=rank_info,
    )


def stack_of(backend: Any, **options: Any) -> Any:
    """A stack of GRPO, all rows in one pass unless told otherwise."""
    from rl_core.algorithms import algorithms
    from rl_core.train.stack import TrainStack

    algorithm_cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    return TrainStack(backend, algorithm_cls(config), **({"micro_batch_size": len(rows())} | options))


def measured(stack: Any, some: list[Row]) -> Numbers:
    """What training takes for the log-probabilities of the policy that rolled out."""
    columns = stack.measure(batch(some))
    return [] if columns is None else _ragged(columns.tensor("old_log_probs"), some)


def one_by_one(policy: Any, **options: Any) -> Found:
    """A policy's forward, each row by itself."""
    found = Found()
    with torch.no_grad():
        for row in rows():
            columns = batch([row])
            names = ("input_ids", "attention_mask", "position_ids", "response_mask")
            given_1T, entropy_1T = policy(*(columns.tensor(name) for name in names), with_entropy=True, **options)
            found.log_probs.append(given_1T[0].tolist())
            found.entropies.append(entropy_1T[0].tolist())
    return found


def own(folder: str) -> Found:
    """The policy's forward on single rows, at two temperatures."""
    policy = bundle_of(folder).policy.eval()
    found = one_by_one(policy)
    found.cool, found.falls_back = one_by_one(policy, temperature=COOL), _why_not(policy, "kernels")
    return found


def padded(folder: str) -> Found:
    """All rows in one padded pass of training."""
    backend = backend_of(folder, _alone())
    return Found(measured(stack_of(backend), rows()), falls_back=_why_not(backend.policy, "padded"))


def packed(folder: str) -> Found:
    """Rows end to end."""
    backend = backend_of(folder, _alone())
    return Found(measured(stack_of(backend, max_tokens_per_micro_batch=48), rows()))


def shared(folder: str) -> Found:
    """The prompt of siblings computed once."""
    backend = backend_of(folder, _alone())
    stack = stack_of(backend, share_prompts=True)
    why = "" if stack.share_prompts else _why_not(backend.policy, "shared prompts") or "its prompts cannot be shared"
    return Found(measured(stack, rows()), falls_back=why)


def decoded(folder: str) -> Found:
    """Replies sampled as a rollout engine does, at two temperatures."""
    backend = backend_of(folder, _alone())
    why = _why_not(backend.policy, "cache")
    return Found(replies=sampled(backend), cool_replies=sampled(backend, COOL), falls_back=why)


def sampled(backend: Any, temperature: float = 1.0) -> list[Reply]:
    """Several replies to each prompt."""
    from rl_core.models.packed_weights import packed_weights
    from rl_core.rollout.decode import Request, Sampling, decode

    prompts = list(dict.fromkeys(prompt for prompt, _ in rows()))
    requests = [Request(list(prompt), NUM_REPLIES, NUM_NEW) for prompt in prompts]
    sampling = Sampling(NUM_NEW, temperature, ENDS, PAD)
    generator = torch.Generator().manual_seed(3)
    with backend.rollout_policy() as policy, packed_weights(policy.model) as products:
        replies = decode(policy, requests, sampling, generator, backend.device, products)
    asked = [prompt for prompt in prompts for _ in range(NUM_REPLIES)]
    return [
        ((prompt, tuple(reply.token_ids)), list(reply.log_probs)) for prompt, reply in zip(asked, replies, strict=True)
    ]


def on_two_ranks(folder: str, sizes: dict[str, int], rank: int, meeting: str) -> Found:
    """What one of two ranks that share weight matrices or sequences measures, and samples."""
    with _group(rank, 2, meeting):
        backend = backend_of(folder, RankInfo(rank, 2, "cpu", 1, TrainTopology(**sizes)))
        return Found(measured(stack_of(backend), rows()), replies=sampled(backend))


def trained(folder: str, out: str, with_lora: bool) -> Found:
    """What the policy says after a step, its export, and what replicas say that were sent its weights."""
    from schemas.recipe import LoraConfig
    from schemas.rollout import SyncMode

    lora = LoraConfig(rank=4, alpha=8) if with_lora else None
    with _group(0, 1, f"{out}.meeting"):
        backend = backend_of(folder, _alone(), lora)
        stack_of(backend, micro_batch_size=2).train(batch(rows()))
        with backend.rollout_policy() as policy:
            found = one_by_one(policy)
        backend.export(out)
        modes = (SyncMode.FULL, SyncMode.ADAPTER) if with_lora else (SyncMode.FULL,)
        found.synced = {str(mode): tried(partial(_synced, backend, mode, lora, folder)) for mode in modes}
        return found


def _synced(backend: Any, mode: Any, lora: Any, folder: str) -> Numbers:
    """What a dedicated engine's replica says that was sent the weights."""
    from rl_core.rollout.dedicated import Replica
    from schemas.recipe import DType

    replica = Replica(bundle_of(folder), lora, mode, DType.FLOAT32, _alone())
    _send(backend, replica, mode)
    with replica.rollout_policy() as policy:
        return one_by_one(policy).log_probs


def _send(backend: Any, replica: Any, mode: Any) -> None:
    """A first sync, as `WeightSync` does it, within one process."""
    from rl_core.train.checksums import checksum
    from rl_core.train.wire import kept_weights, pack, sent_weights

    expected = {name: checksum(value) for name, value in kept_weights(backend, mode)}
    sent = [(name, value.float()) for name, value in sent_weights(backend, mode, averaged=False)]
    expected |= {name: checksum(value) for name, value in sent}
    for bucket in pack(sent, 1 << 16):
        replica.load(bucket)
    replica.finish(backend.weight_version(), expected, torch.float32)


def in_group(path: Callable[[str], Found], folder: str, meeting: str) -> Found:
    """A path on one rank, which has a process group all the same."""
    with _group(0, 1, meeting):
        return path(folder)


@contextmanager
def _group(rank: int, world_size: int, meeting: str) -> Iterator[None]:
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=world_size)
    try:
        yield
    finally:
        if world_size > 1:
            dist.barrier()


def _alone() -> RankInfo:
    return RankInfo(0, 1, "cpu", 1)


def _why_not(policy: Any, way: str) -> str:
    """Why the product does not take a way; empty where it does."""
    paths = policy.paths
    return "" if paths is None else next((why for path, why in paths.refused.items() if path == way), "")


def _ragged(values_BT: Tensor, some: list[Row]) -> Numbers:
    return [values[: len(response)] for values, (_, response) in zip(values_BT.tolist(), some, strict=True)]
