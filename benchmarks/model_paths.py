"""Outputs of each path of the product for a tiny model, and of plain transformers, each in its own
process.

The expected values are `AutoModelForCausalLM.from_pretrained(folder)(ids).logits`, one row at a
time, without padding or KV cache, in a process where nothing of the product has touched
transformers. All paths are called through the product's own entry points.

Axes: B rows, P prompt positions, T response positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks.forks import Failed, apart, together, tried
from benchmarks.model_families import FIRST_SPECIAL, FIRST_WORD, PAD, VOCABULARY, auto_class
from rl_core.data_proto import DataProto
from rl_core.models.checks.paths import Path
from rl_core.ranks.rank_info import RankInfo, TrainTopology

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from rl_core.models.bundle import TextBundle
    from rl_core.rollout.dedicated import Replica
    from rl_core.train.fsdp import FSDPBackend
    from rl_core.train.stacks.token_stack import TrainStack
    from schemas.recipe import LoraConfig
    from schemas.sections.rollout import SyncMode

COOL = 0.7
"""Second temperature, besides 1."""
PROMPTS, RESPONSES = (3, 14, 9, 6), ((12, 4, 1), (7, 2), (5,), (10, 10))
"""Lengths of the rows: of each prompt, and of the responses to it."""
TRAINED = {"all weights": False, "adapters": True}
"""Kinds of training by name; True for adapters."""
NUM_NEW, NUM_REPLIES = 11, 3
ENDS = tuple(range(FIRST_WORD, VOCABULARY, 9))
"""Words that end a sampled reply, so that rows leave the batch at different times."""
Row = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt, and of a response to it."""
Reply = tuple[Row, list[float]]
"""A sampled row, with the log-probabilities of its tokens from sampling."""


Numbers = list[list[float]]
"""One number per token of every row."""


@dataclass
class Found:
    """Outputs of one path."""

    log_probs: Numbers = field(default_factory=list)
    """Log-probabilities of the rows' responses."""
    entropies: Numbers = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    """Sampled replies, if the path samples."""
    cool: Found | None = None
    """Outputs at the temperature `COOL`."""
    cool_replies: list[Reply] = field(default_factory=list)
    """Replies sampled at the temperature `COOL`."""
    exported: object = None
    """`Failed` if the export of a trained policy failed."""
    synced: dict[str, Numbers | Failed] = field(default_factory=dict)
    """Log-probabilities from replicas that received the weights, by sync mode; `Failed` if that
    failed."""
    falls_back: str = ""
    """Reason why the product took another path; empty if it did not."""
    spread: float = 0.0
    """Standard deviation of the log-probabilities of all words."""


def rows() -> list[Row]:
    """Return the same rows for every family: ordinary words, prompts in order, siblings
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
    """Return rows as a rollout with advantages."""
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
    """Return the outputs of transformers for rows at a temperature."""
    model = auto_class(model_type).from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return [_said(model, some, temperature) for some, temperature in several]


def plain_rounded(folder: str, model_type: str, some: list[Row]) -> Found:
    """Return the outputs of transformers for rows when every weight has a float32 rounding error.

    Their distance from the exact outputs is the size of changes that another order of summation can
    cause.
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


def bundle_of(folder: str) -> TextBundle:
    """Return the bundle of the model, as workers that train on text load it."""
    from rl_core.models.bundle import TextBundle
    from schemas.recipe import ModelConfig

    return TextBundle(folder, ModelConfig(path=folder))


def all_paths(folder: str, scratch: str) -> dict[str, Found | Failed]:
    """Return the outputs of each path, or `Failed`: the model is loaded once, and each path runs in
    a fork.

    Args: scratch: a folder for exports and files of process groups.
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
        if isinstance(both[0], Failed):
            found[name] = both[0]
        else:
            found[name] = max(
                both, key=lambda one: 0 if isinstance(one, Failed) else len(one.log_probs)
            )
    for kind, with_lora in TRAINED.items():
        found[kind] = apart(trained, bundle, f"{scratch}/{kind}", with_lora)
    return found


def backend_of(
    bundle: TextBundle, rank_info: RankInfo, lora: LoraConfig | None = None
) -> FSDPBackend:
    """Build a backend in float32."""
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


def stack_of(backend: FSDPBackend, **options: Any) -> TrainStack:
    """Build a GRPO stack, with all rows in one pass by default."""
    from rl_core.algorithms import algorithms
    from rl_core.train.stacks.token_stack import TrainStack

    algorithm_cls, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    given: dict[str, Any] = {"micro_batch_size": len(rows()), **options}
    return TrainStack(backend, algorithm_cls(config), **given)


def measured(stack: TrainStack, some: list[Row]) -> Numbers:
    """Return the log-probabilities that training measures for the old policy."""
    columns = stack.measure(batch(some))
    if columns is None:
        return []
    return _ragged(columns.tensor("old_log_probs"), some)


def one_by_one(policy: Any, **options: float) -> Found:
    """Return the outputs of a policy's forward pass, one row at a time."""
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


def own(bundle: TextBundle) -> Found:
    """Return the outputs of the policy's forward pass on single rows, at two temperatures."""
    policy = bundle.policy.eval()
    found = one_by_one(policy)
    found.cool = one_by_one(policy, temperature=COOL)
    found.falls_back = _why_not(policy, Path.KERNELS) or _why_not(policy, Path.PART)
    return found


def padded(bundle: TextBundle) -> Found:
    """Compute all rows in one padded pass."""
    backend = backend_of(bundle, _alone())
    return Found(
        measured(stack_of(backend), rows()), falls_back=_why_not(backend.policy, Path.PADDED)
    )


def packed(bundle: TextBundle) -> Found:
    """Compute all rows packed into one sequence."""
    backend = backend_of(bundle, _alone())
    return Found(measured(stack_of(backend, max_tokens_per_micro_batch=48), rows()))


def shared(bundle: TextBundle) -> Found:
    """Compute rows with prefix sharing among siblings."""
    backend = backend_of(bundle, _alone())
    stack = stack_of(backend, share_prompts=True)
    if stack.share_prompts:
        why = ""
    else:
        why = backend.policy.why_no_prompt_sharing() or "without a reason"
    return Found(measured(stack, rows()), falls_back=why)


def decoded(bundle: TextBundle) -> Found:
    """Sample replies as a rollout engine does, at two temperatures."""
    backend = backend_of(bundle, _alone())
    why = _why_not(backend.policy, Path.CACHED)
    return Found(replies=sampled(backend), cool_replies=sampled(backend, COOL), falls_back=why)


def sampled(backend: FSDPBackend, temperature: float = 1.0) -> list[Reply]:
    """Sample several replies to each prompt."""
    from rl_core.kernels import packed_weights
    from rl_core.models.decoding.decode import decode
    from rl_core.models.decoding.request import Request, Sampling

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


def _signs(config: PretrainedConfig) -> set[int]:
    """Return the token ids that a config uses as placeholders of pictures and sounds."""
    names = {}
    for name, value in config.to_dict().items():
        if name.endswith(("_token_id", "_token_index")):
            names[name] = value
    return {value for value in names.values() if isinstance(value, int) and value >= FIRST_SPECIAL}


def on_two_ranks(bundle: TextBundle, sizes: dict[str, int], rank: int, meeting: str) -> Found:
    """Measure and sample on one of two ranks that shard weight matrices or sequences."""
    with _group(rank, 2, meeting):
        rank_info = RankInfo(rank, 2, "cpu", 1, topology=TrainTopology(**sizes))
        if rank_info.topology.model_size != 2:
            raise ValueError(f"{sizes}: these ranks share nothing, so there is nothing to compare")
        backend = backend_of(bundle, rank_info)
        return Found(measured(stack_of(backend), rows()), replies=sampled(backend))


def trained(bundle: TextBundle, out: str, with_lora: bool) -> Found:
    """Take a training step; return the policy's outputs, its export, and outputs of synced
    replicas."""
    from schemas.recipe import LoraConfig
    from schemas.sections.rollout import SyncMode

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


def _synced(backend: FSDPBackend, mode: SyncMode, lora: LoraConfig | None) -> Numbers:
    """Return the log-probabilities from a dedicated engine's replica after a sync."""
    from rl_core.rollout.dedicated import Replica
    from schemas.recipe import DType

    # As a worker's bundle would be, whose probe gives the same.
    bundle = copy(backend.bundle)
    bundle.policy = bundle.load_policy()
    replica = Replica(bundle, lora, mode, DType.FLOAT32, _alone())
    _send(backend, replica, mode)
    with replica.rollout_policy() as policy:
        return one_by_one(policy).log_probs


def _send(backend: FSDPBackend, replica: Replica, mode: SyncMode) -> None:
    """Send a first sync as `WeightSync` does, within one process."""
    from rl_core.models.export.checksums import checksum
    from rl_core.train.weights.buckets import kept_weights, pack, sent_weights

    expected = {name: checksum(value) for name, value in kept_weights(backend, mode)}
    given = sent_weights(backend, mode, torch.float32, averaged=False)
    sent = [(name, value.float()) for name, value in given]
    expected |= {name: checksum(value) for name, value in sent}
    for bucket in pack(sent, 1 << 16):
        replica.load(bucket)
    replica.finish(backend.weight_version(), expected, torch.float32)


def _in_group(path: Callable[[TextBundle], Found], bundle: TextBundle, meeting: str) -> Found:
    """Run a path on one rank with a process group."""
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
    """Return the reason why the product does not take a path; empty if it does."""
    return (policy.paths.why_not(path) if policy.paths is not None else None) or ""


def _ragged(values_BT: Tensor, some: list[Row]) -> Numbers:
    rows = []
    for values, (_, response) in zip(values_BT.tolist(), some, strict=True):
        rows.append(values[: len(response)])
    return rows
