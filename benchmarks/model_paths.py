"""What each path of the product gives for a tiny model, and what plain transformers gives, each in
its own process.

The truth is `AutoModelForCausalLM.from_pretrained(folder)(ids).logits`, a row at a time, without
padding or cache, in a process where nothing of the product has touched transformers. Everything
else goes by the product's own entry points.

Axes: B rows, P prompt positions, T response positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.forks import Failed, apart, together, tried
from benchmarks.model_families import FIRST_SPECIAL, FIRST_WORD, PAD, VOCABULARY, auto_class
from rl_core.data_proto import DataProto
from rl_core.models.checks.paths import Path
from rl_core.ranks.rank_info import RankInfo, TrainTopology

COOL = 0.7
"""A temperature besides 1."""
PROMPTS, RESPONSES = (3, 14, 9, 6), ((12, 4, 1), (7, 2), (5,), (10, 10))
"""Lengths of the rows: of each prompt, and of the responses to it."""
TRAINED = {"all weights": False, "adapters": True}
"""Kinds of training by name, and whether it is that of adapters."""
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
    exported: Any = None
    """`Failed` where the export of a trained policy failed."""
    synced: dict[str, Any] = field(default_factory=dict)
    """What replicas say that were sent the weights, by the mode of sync; `Failed` where that
    failed."""
    falls_back: str = ""
    """Why another path was taken, if one was."""
    spread: float = 0.0
    """Standard deviation of the log-probabilities of all words."""


def rows() -> list[Row]:
    """The same for every family: words that mean nothing special, prompts in order, siblings
    adjacent."""
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
            "advantages": torch.randn(len(some), 1, generator=torch.Generator().manual_seed(1))
            * acts_BT,
        }
    )


# The truth.


def plain(folder: str, model_type: str, *several: tuple[list[Row], float]) -> list[Found]:
    """What transformers itself says of rows at a temperature."""
    model = auto_class(model_type).from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return [_said(model, some, temperature) for some, temperature in several]


def plain_rounded(folder: str, model_type: str, some: list[Row]) -> Found:
    """What transformers itself says of rows when every weight is off by a rounding error of
    float32.

    The distance from what it says without is what an order of summing up may change.
    """
    model = auto_class(model_type).from_pretrained(folder, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            moved = torch.randn(weight.shape, generator=generator) * torch.finfo(torch.float32).eps
            weight.mul_(1 + moved)
        return _said(model, some, 1.0)


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


def all_paths(folder: str, scratch: str) -> dict[str, Any]:
    """What each path gives, `Failed` where it fails: the model is loaded once, and each path is a
    fork from there.

    Args: scratch: a folder for exports and meetings.
    """
    bundle = bundle_of(folder)
    found = {"own forward": apart(own, bundle)}
    for name, path in (
        ("padded", padded),
        ("packed", packed),
        ("shared", shared),
        ("decode", decoded),
    ):
        found[name] = apart(_in_group, path, bundle, f"{scratch}/meeting of {name}")
    for name, sizes in (("TP 2", {"tp_size": 2}), ("SP 2", {"sp_size": 2})):
        meeting = f"{scratch}/meeting of {name}"
        both = together([(on_two_ranks, (bundle, sizes, rank, meeting)) for rank in (0, 1)])
        # Of a rank that waited in vain the other one says more.
        both.sort(key=lambda one: not isinstance(one, Failed) or one.kind == "TimeoutError")
        found[name] = (
            both[0]
            if isinstance(both[0], Failed)
            else max(both, key=lambda one: len(one.log_probs))
        )
    for kind, with_lora in TRAINED.items():
        found[kind] = apart(trained, bundle, f"{scratch}/{kind}", with_lora)
    return found


def backend_of(bundle: Any, rank_info: RankInfo, lora: Any = None) -> Any:
    """A backend in float32."""
    from rl_core.train.fsdp import FSDPBackend
    from schemas.recipe import FSDPConfig, LrSchedulerConfig, OptimizerConfig

    return FSDPBackend(
        bundle,
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
    from rl_core.train.stacks.token_stack import TrainStack

    algorithm_cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    return TrainStack(
        backend, algorithm_cls(config), **({"micro_batch_size": len(rows())} | options)
    )


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
            given_1T, entropy_1T = policy(
                *(columns.tensor(name) for name in names), with_entropy=True, **options
            )
            found.log_probs.append(given_1T[0].tolist())
            found.entropies.append(entropy_1T[0].tolist())
    return found


def own(bundle: Any) -> Found:
    """The policy's forward on single rows, at two temperatures."""
    policy = bundle.policy.eval()
    found = one_by_one(policy)
    found.cool = one_by_one(policy, temperature=COOL)
    found.falls_back = _why_not(policy, Path.KERNELS) or _why_not(policy, Path.PART)
    return found


def padded(bundle: Any) -> Found:
    """All rows in one padded pass of training."""
    backend = backend_of(bundle, _alone())
    return Found(
        measured(stack_of(backend), rows()), falls_back=_why_not(backend.policy, Path.PADDED)
    )


def packed(bundle: Any) -> Found:
    """Rows end to end."""
    backend = backend_of(bundle, _alone())
    return Found(measured(stack_of(backend, max_tokens_per_micro_batch=48), rows()))


def shared(bundle: Any) -> Found:
    """The prompt of siblings computed once."""
    backend = backend_of(bundle, _alone())
    stack = stack_of(backend, share_prompts=True)
    why = (
        "" if stack.share_prompts else backend.policy.why_no_prompt_sharing() or "without a reason"
    )
    return Found(measured(stack, rows()), falls_back=why)


def decoded(bundle: Any) -> Found:
    """Replies sampled as a rollout engine does, at two temperatures."""
    backend = backend_of(bundle, _alone())
    why = _why_not(backend.policy, Path.CACHED)
    return Found(replies=sampled(backend), cool_replies=sampled(backend, COOL), falls_back=why)


def sampled(backend: Any, temperature: float = 1.0) -> list[Reply]:
    """Several replies to each prompt."""
    from rl_core.kernels import packed_weights
    from rl_core.models.decoding.decode import Request, Sampling, decode

    prompts = list(dict.fromkeys(prompt for prompt, _ in rows()))
    requests = [Request(list(prompt), NUM_REPLIES, NUM_NEW) for prompt in prompts]
    sampling = Sampling(NUM_NEW, temperature, ENDS, PAD)
    generator = torch.Generator().manual_seed(3)
    with backend.rollout_policy() as policy, packed_weights(policy.model) as products:
        replies = decode(policy, requests, sampling, generator, backend.device, products)
    asked = [prompt for prompt in prompts for _ in range(NUM_REPLIES)]
    signs = _signs(backend.policy.language_model.config)
    found: list[Reply] = []
    for prompt, reply in zip(asked, replies, strict=True):
        # What stands for a picture is no word: a model that also sees reads something else there
        # than the text's.
        stop = next(
            (place + 1 for place, token in enumerate(reply.token_ids) if token in signs), None
        )
        found.append(((prompt, tuple(reply.token_ids[:stop])), list(reply.log_probs[:stop])))
    return found


def _signs(config: Any) -> set[int]:
    """Tokens of a config that stand for pictures and sounds."""
    names = {
        name: value
        for name, value in config.to_dict().items()
        if name.endswith(("_token_id", "_token_index"))
    }
    return {value for value in names.values() if isinstance(value, int) and value >= FIRST_SPECIAL}


def on_two_ranks(bundle: Any, sizes: dict[str, int], rank: int, meeting: str) -> Found:
    """What one of two ranks that share weight matrices or sequences measures, and samples."""
    with _group(rank, 2, meeting):
        rank_info = RankInfo(rank, 2, "cpu", 1, topology=TrainTopology(**sizes))
        if rank_info.topology.model_size != 2:
            raise ValueError(f"{sizes}: these ranks share nothing, so there is nothing to compare")
        backend = backend_of(bundle, rank_info)
        return Found(measured(stack_of(backend), rows()), replies=sampled(backend))


def trained(bundle: Any, out: str, with_lora: bool) -> Found:
    """What the policy says after a step, its export, and what replicas say that were sent its
    weights."""
    from schemas.recipe import LoraConfig
    from schemas.rollout import SyncMode

    lora = LoraConfig(rank=4, alpha=8) if with_lora else None
    with _group(0, 1, f"{out}.meeting"):
        backend = backend_of(bundle, _alone(), lora)
        stack_of(backend, micro_batch_size=2).train(batch(rows()))
        with backend.rollout_policy() as policy:
            found = one_by_one(policy)
        found.exported = tried(partial(backend.export, out))
        modes = (SyncMode.FULL, SyncMode.ADAPTER) if with_lora else (SyncMode.FULL,)
        found.synced = {str(mode): tried(partial(_synced, backend, mode, lora)) for mode in modes}
        return found


def _synced(backend: Any, mode: Any, lora: Any) -> Numbers:
    """What a dedicated engine's replica says that was sent the weights."""
    from rl_core.rollout.dedicated import Replica
    from schemas.recipe import DType

    # As a worker's bundle would be, whose probe gives the same.
    bundle = copy(backend.bundle)
    bundle.policy = bundle.load_policy()
    replica = Replica(bundle, lora, mode, DType.FLOAT32, _alone())
    _send(backend, replica, mode)
    with replica.rollout_policy() as policy:
        return one_by_one(policy).log_probs


def _send(backend: Any, replica: Any, mode: Any) -> None:
    """A first sync, as `WeightSync` does it, within one process."""
    from rl_core.models.export.checksums import checksum
    from rl_core.train.weights.buckets import kept_weights, pack, sent_weights

    expected = {name: checksum(value) for name, value in kept_weights(backend, mode)}
    sent = [(name, value.float()) for name, value in sent_weights(backend, mode, averaged=False)]
    expected |= {name: checksum(value) for name, value in sent}
    for bucket in pack(sent, 1 << 16):
        replica.load(bucket)
    replica.finish(backend.weight_version(), expected, torch.float32)


def _in_group(path: Callable[[Any], Found], bundle: Any, meeting: str) -> Found:
    """A path on one rank, which has a process group all the same."""
    with _group(0, 1, meeting):
        return path(bundle)


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


def _why_not(policy: Any, path: Path) -> str:
    """Why the product does not take a path; empty where it does."""
    return (policy.paths.why_not(path) if policy.paths is not None else None) or ""


def _ragged(values_BT: Tensor, some: list[Row]) -> Numbers:
    return [
        values[: len(response)]
        for values, (_, response) in zip(values_BT.tolist(), some, strict=True)
    ]
