"""Losses of a young adapter, whose policy is computed or stored in bfloat16.

    python -m benchmarks.young_adapters [--write]

SmolLM2-135M learns to say `1` to questions of the game of `selfplay`, with an adapter of rank 16 in
float32. After some updates the same replies are scored with the same weights in other ways; each
number is the mean distance of their log-probabilities from those in float32. `moved` is the
distance of the model before training, which is what a policy that lost its adapter would have.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from peft.tuners import lora
from torch import Tensor

from benchmarks import page
from benchmarks.mismatch import MODEL, sampled, scored, scores
from deployments.agents.sticks import question
from rl_core.data_proto import pad_rows
from rl_core.kernels import AdaptedLinear
from rl_core.models.adapters.dithering import dithered
from rl_core.models.adapters.merging import Adapted, adapted_weights
from rl_core.models.bundle import ModelBundle
from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.decoding.request import Reply, StopReason
from rl_core.models.locate import locate
from rl_core.ranks.rank_info import RankInfo
from rl_core.runtime.home import Home
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.weights.ema import local_part
from schemas.recipe import (
    DType,
    FSDPConfig,
    LoraConfig,
    LrSchedulerConfig,
    ModelConfig,
    OptimizerConfig,
)

TITLE = "What is left of a young adapter: `make bench-adapters`"
LEARNING_RATE = 3e-4
UPDATES = (0, 1, 2, 4, 8)
"""Numbers of updates after which the policy is looked at."""
NEW_TOKENS = 4
Rows = list[tuple[list[int], Reply]]


def backend_of(source: str, dtype: DType) -> FSDPBackend:
    """Build the trainer's backend on one rank."""
    return FSDPBackend(
        ModelBundle(source, ModelConfig(path=MODEL)),
        FSDPConfig(param_dtype=dtype),
        OptimizerConfig(),
        LrSchedulerConfig(),
        LoraConfig(rank=16, alpha=32),
        total_steps=1,
        seed=0,
        with_reference=False,
        rank_info=RankInfo(0, 1, "cpu", torch.get_num_threads()),
    )


def factors(backend: FSDPBackend) -> list[Tensor]:
    """Return the matrices of all adapters, as they are kept."""
    backend.reshard()
    return [local_part(value) for value in backend.trainable.values()]


@contextmanager
def stored(backend: FSDPBackend, dithers: bool) -> Iterator[None]:
    """Let the policy say for the block what its merged weights in bfloat16 say."""
    backend.reshard()
    kept: dict[str, Tensor] = {}
    values = dict(backend.policy.named_parameters())
    found: dict[str, Adapted] = adapted_weights(backend.policy)
    with torch.no_grad():
        for name, one in found.items():
            base = local_part(values[name].detach())
            kept[name] = base.clone()
            delta = one.delta(lambda factor: local_part(values[factor].detach()))
            whole = base + delta
            merged = dithered(whole, torch.bfloat16, name) if dithers else whole.bfloat16()
            base.copy_(merged.float() - delta)
    try:
        yield
    finally:
        backend.reshard()
        for name, base in kept.items():
            local_part(values[name].detach()).copy_(base)


def ways(coarse: FSDPBackend, fine: FSDPBackend, rows: Rows) -> dict[str, Tensor]:
    """Return the log-probabilities [B, T] of replies in each way, `float32` among them."""
    found = {"float32": scored(fine, rows)}
    found["rollout engine"] = pad_rows([torch.tensor(reply.log_probs) for _, reply in rows], 0.0)
    found["trainer"] = scored(coarse, rows)
    with patch.object(AdaptedLinear, "forward", lora.Linear.forward):
        found["peft's layers"] = scored(coarse, rows)
    with stored(fine, True):
        found["merged, dithered"] = scored(fine, rows)
    with stored(fine, False):
        found["merged, to the nearest"] = scored(fine, rows)
    with fine.reference_policy():
        found["moved"] = scored(fine, rows)
    return found


def main() -> None:
    """Train, look, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    options = parser.parse_args()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    source = locate(MODEL, Home.default().models)
    coarse, fine = backend_of(source, DType.BFLOAT16), backend_of(source, DType.FLOAT32)
    tokenizer: Any = load_tokenizer(source)
    prompts: list[list[int]] = []
    for heap in (6, 7, 8, 9):
        for most in (2, 3):
            asked = question(heap, most)
            prompts.append(
                tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
            )
    said = [*tokenizer.encode("1"), tokenizer.eos_token_id]
    targets = [(prompt, Reply(said, [0.0] * len(said), StopReason.EOS)) for prompt in prompts]
    optimizer = torch.optim.AdamW(fine.trainable.values(), lr=LEARNING_RATE)
    lines: list[list[str]] = []
    names: list[str] = []
    for update in range(max(UPDATES) + 1):
        if update in UPDATES:
            for theirs, ours in zip(factors(coarse), factors(fine), strict=True):
                theirs.copy_(ours)
            rows = sampled(coarse, prompts, NEW_TOKENS)
            found = ways(coarse, fine, rows)
            truth = found.pop("float32")
            used = pad_rows([torch.ones(len(reply.token_ids)) for _, reply in rows], 0.0).bool()
            distances = [f"{float((one - truth).abs()[used].mean()):.4f}" for one in found.values()]
            lines.append([str(update), *distances])
            names = [*found]
        loss = -scores(fine, targets).mean()
        loss.backward()
        fine.reshard()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
    text = (
        "The mean distance of log-probabilities from those of the same adapter in float32 "
        f"(SmolLM2-135M, rank 16, AdamW at {LEARNING_RATE:g}). {page.machine()}\n\n"
        f"{page.table(['updates', *names], lines)}"
    )
    print(text)
    if options.write:
        page.write_section(TITLE, text)


if __name__ == "__main__":
    main()
