"""The distance between the log-probabilities of rollout and trainer, on the same weights of
SmolLM2-135M.

    python -m benchmarks.mismatch [--new-tokens 64]

Four prompts get eight replies each from the rollout engine, which are then scored by the trainer's
forward pass. Both have the same weights, so every difference is rounding: exp of it is the
importance ratio of a first update. The same is measured for plain transformers: `generate` compared
with one forward pass over the whole reply. `exact` is `model.exact: true`, which makes the
differences zero and takes more time. Seconds are of one run.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks import page
from rl_core.data_proto import pad_rows
from rl_core.models.bundle import ModelBundle
from rl_core.models.decoding.request import Reply, Request
from rl_core.models.locate import locate
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.engine import RolloutEngine
from rl_core.runtime.home import Home
from rl_core.train.fsdp import FSDPBackend
from schemas.recipe import (
    DType,
    FSDPConfig,
    LoraConfig,
    LrSchedulerConfig,
    ModelConfig,
    OptimizerConfig,
)
from schemas.sections.rollout import RolloutConfig

MODEL = "embedded:smollm2-135m-instruct"
QUESTIONS = (
    "What is 3 + 4? State the final answer only.",
    "Tell me a story about a cat.",
    "Explain why the sky is blue in one sentence.",
    "List three fruits.",
)
SAMPLES = 8
SETTINGS: dict[str, tuple[DType, bool, bool]] = {
    "bfloat16": (DType.BFLOAT16, False, False),
    "bfloat16, adapters": (DType.BFLOAT16, True, False),
    "bfloat16, `exact`": (DType.BFLOAT16, False, True),
    "bfloat16, adapters, `exact`": (DType.BFLOAT16, True, True),
    "float32": (DType.FLOAT32, False, False),
    "float32, `exact`": (DType.FLOAT32, False, True),
}
"""Settings by name: format of the computation, True for trained adapters, and `model.exact`."""


def backend_of(source: str, dtype: DType, adapters: bool, exact: bool) -> FSDPBackend:
    """Build the trainer's backend on one rank. B of adapters gets random weights, since it starts
    at zero."""
    backend = FSDPBackend(
        ModelBundle(source, ModelConfig(path=MODEL, exact=exact)),
        FSDPConfig(param_dtype=dtype),
        OptimizerConfig(),
        LrSchedulerConfig(),
        LoraConfig() if adapters else None,
        total_steps=1,
        seed=0,
        with_reference=False,
        rank_info=RankInfo(0, 1, "cpu", torch.get_num_threads()),
    )
    generator = torch.Generator().manual_seed(0)
    for name, parameter in backend.policy.named_parameters():
        if "lora_B" in name:
            weight: Any = parameter.data
            weight._local_tensor.copy_(torch.randn(parameter.shape, generator=generator) * 0.01)
    return backend


def prompts_of(tokenizer: Any) -> list[list[int]]:
    """Return the token ids of the questions, up to the beginning of the answer."""
    prompts: list[list[int]] = []
    for question in QUESTIONS:
        prompts.append(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}],
                add_generation_prompt=True,
                return_dict=False,
            )
        )
    return prompts


def sampled(
    backend: FSDPBackend, prompts: list[list[int]], new_tokens: int
) -> list[tuple[list[int], Reply]]:
    """Sample replies; return them with their prompts, group by group."""
    engine = RolloutEngine(backend, RolloutConfig(), {}, {}, 0)
    requests = [Request(prompt, SAMPLES, new_tokens) for prompt in prompts]
    with engine.decoding(
        engine.sampling(new_tokens, 1.0), torch.Generator().manual_seed(0)
    ) as decode:
        replies = decode(requests)
    return [(prompts[row // SAMPLES], reply) for row, reply in enumerate(replies)]


@torch.no_grad()
def scored(backend: FSDPBackend, rows: list[tuple[list[int], Reply]]) -> Tensor:
    """Return `scores` without gradients."""
    return scores(backend, rows)


def scores(backend: FSDPBackend, rows: list[tuple[list[int], Reply]]) -> Tensor:
    """Return the trainer's log-probabilities of all replies, [B, T], with prefix sharing as in
    training."""
    prompt_length = max(len(prompt) for prompt, _ in rows)
    left = [[0] * (prompt_length - len(prompt)) + prompt for prompt, _ in rows]
    used = [[0] * (prompt_length - len(prompt)) + [1] * len(prompt) for prompt, _ in rows]
    replies_BT = pad_rows([torch.tensor(reply.token_ids) for _, reply in rows], 0)
    mask_BT = pad_rows([torch.ones(len(reply.token_ids), dtype=torch.long) for _, reply in rows], 0)
    ids_BL = torch.cat([torch.tensor(left), replies_BT], dim=1)
    used_BL = torch.cat([torch.tensor(used), mask_BT], dim=1)
    positions_BL = (used_BL.cumsum(-1) - 1).clamp_min(0)
    shares = backend.enable_prompt_sharing()
    return backend.policy(ids_BL, used_BL, positions_BL, mask_BT, share_prompts=shares)[0]


@torch.no_grad()
def plain_transformers(
    source: str, dtype: torch.dtype, new_tokens: int
) -> tuple[Tensor, float, float]:
    """Return the differences of plain transformers, [N], and the seconds of sampling and
    scoring."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(source, dtype=dtype).eval()
    prompts = prompts_of(AutoTokenizer.from_pretrained(source))
    torch.manual_seed(0)
    distances, sampling_s, scoring_s = [], 0.0, 0.0
    for prompt in prompts:
        before = time.perf_counter()
        given = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=True,
            top_k=0,
            num_return_sequences=SAMPLES,
            max_new_tokens=new_tokens,
            pad_token_id=0,
            output_logits=True,
            return_dict_in_generate=True,
        )
        sampling_s += time.perf_counter() - before
        before = time.perf_counter()
        replies = given.sequences[:, len(prompt) :]
        logits = model(given.sequences).logits[:, len(prompt) - 1 : -1]
        scoring_s += time.perf_counter() - before
        said = torch.stack(given.logits, dim=1)
        both = []
        for values in (said, logits):
            both.append(values.float().log_softmax(-1).gather(2, replies[..., None])[..., 0])
        ends = (replies == model.generation_config.eos_token_id).cumsum(-1)
        written = ends - (replies == model.generation_config.eos_token_id).long() == 0
        distances.append((both[0] - both[1]).abs()[written])
    return torch.cat(distances), sampling_s, scoring_s


def row_of(name: str, distance_N: Tensor, sampling_s: float, scoring_s: float) -> list[str]:
    equal = float((distance_N == 0).float().mean())
    figures = [f"{float(distance_N.mean()):.2g}", f"{float(distance_N.max()):.2g}", f"{equal:.0%}"]
    return [name, *figures, f"{sampling_s:.1f}", f"{scoring_s:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    source = locate(MODEL, Home.default().models)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(
            "gloo", init_method=f"file://{Path(folder) / 'meeting'}", rank=0, world_size=1
        )
        for name, (dtype, adapters, exact) in SETTINGS.items():
            backend = backend_of(source, dtype, adapters, exact)
            prompts = prompts_of(backend.bundle.tokenizer)
            before = time.perf_counter()
            replies = sampled(backend, prompts, options.new_tokens)
            sampling_s = time.perf_counter() - before
            before = time.perf_counter()
            scores_BT = scored(backend, replies)
            scoring_s = time.perf_counter() - before
            said = torch.cat([torch.tensor(reply.log_probs) for _, reply in replies])
            measured = torch.cat(
                [
                    scores[: len(reply.token_ids)]
                    for scores, (_, reply) in zip(scores_BT, replies, strict=True)
                ]
            )
            rows.append(row_of(name, (said - measured).abs(), sampling_s, scoring_s))
            print(rows[-1], flush=True)
        dist.destroy_process_group()
    for name, dtype in (("bfloat16", torch.bfloat16), ("float32", torch.float32)):
        rows.append(
            row_of(
                f"plain transformers, {name}",
                *plain_transformers(source, dtype, options.new_tokens),
            )
        )
        print(rows[-1], flush=True)
    heads = [
        "",
        "mean of the distances",
        "largest",
        "equal to the bit",
        "sampling, s",
        "scoring, s",
    ]
    intro = (
        f"`make bench-mismatch`: {len(QUESTIONS)} prompts x {SAMPLES} replies of up to "
        f"{options.new_tokens} tokens, temperature 1. {page.machine()}"
    )
    page.write_section(
        "Rollout and trainer on the same weights", f"{intro}\n\n{page.table(heads, rows)}"
    )


if __name__ == "__main__":
    main()
