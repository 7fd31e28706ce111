"""The distance between rollout and trainer on a mixture of experts, with and without router replay,
and the time that it costs.

    python -m benchmarks.router_replay [--new-tokens 64]

A Qwen3-MoE with random weights and SmolLM2's tokenizer (4 blocks of 32 experts, 4 for each token)
answers four prompts eight times each, then the trainer measures the replies: with the same weights,
and after one step of AdamW with a rate of 1e-5, as `rollout.steps_ahead: 1` does. A distance is
that of the log-probabilities of a token. Routers of random weights are less decided than trained
ones. Seconds are CPU time, medians of three rounds with the same weights, in which the two settings
take turns.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks import page
from benchmarks.mismatch import QUESTIONS, SAMPLES
from benchmarks.random_models import RandomModels
from rl_core.algorithms import algorithms
from rl_core.data_proto import DataProto
from rl_core.models.bundle import ModelBundle
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.engine import RolloutEngine
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.stacks.token_stack import TrainStack
from rl_core.trainers.track import prompt_batch
from schemas.recipe import DType, FSDPConfig, LrSchedulerConfig, ModelConfig, OptimizerConfig
from schemas.sections.rollout import RolloutConfig

SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "norm_topk_prob": True,
    "initializer_range": 0.05,
}
REPEATS = 3
T = TypeVar("T")


def mixture(folder: Path) -> str:
    """Write the model and return its folder."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    base = RandomModels(folder).base
    known = AutoConfig.from_pretrained(base)
    words = {name: getattr(known, name) for name in ("vocab_size", "eos_token_id", "pad_token_id")}
    torch.manual_seed(0)
    made = folder / "mixture"
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("qwen3_moe", **SHAPE, **words))
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(base).save_pretrained(made)
    return str(made)


def backend_of(source: str, dtype: DType) -> FSDPBackend:
    """Build the trainer's backend on one rank."""
    return FSDPBackend(
        ModelBundle(source, ModelConfig(path=source)),
        FSDPConfig(param_dtype=dtype),
        OptimizerConfig(learning_rate=1e-5),
        LrSchedulerConfig(),
        None,
        total_steps=1,
        seed=0,
        with_reference=False,
        rank_info=RankInfo(0, 1, "cpu", torch.get_num_threads()),
    )


def stack_of(backend: FSDPBackend, replays: bool) -> TrainStack:
    """Build the trainer's stack, with prefix sharing as recipes have it."""
    algorithm, config = algorithms.resolve({"name": "grpo"}, "algorithm")
    return TrainStack(backend, algorithm(config), share_prompts=True, router_replay=replays)


def prompts() -> DataProto:
    """Return the questions as an engine takes them."""
    items: list[Any] = []
    for number, question in enumerate(QUESTIONS):
        items.append(
            {
                "uid": str(number),
                "prompt": [{"role": "user", "content": question}],
                "env_class": "gsm8k",
                "env_extras": {"reward_spec": {"ground_truth": "7"}},
            }
        )
    return prompt_batch(items)


def timed(job: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a job and its CPU seconds."""
    before = time.process_time()
    return job(), time.process_time() - before


def distances(batch: DataProto, found: DataProto | None) -> Tensor:
    """Return the distances of the trained tokens, [N]."""
    assert found is not None
    apart_BT = (found.tensor("old_log_probs") - batch.tensor("rollout_log_probs")).abs()
    return apart_BT[batch.tensor("response_mask") != 0]


class Side:
    """Engine and trainer of one setting, over the same module as the other's."""

    def __init__(self, backend: FSDPBackend, replays: bool, new_tokens: int) -> None:
        config = RolloutConfig(
            samples_per_prompt=SAMPLES, max_new_tokens=new_tokens, router_replay=replays
        )
        self.engine, self.stack = (
            RolloutEngine(backend, config, {}, {}, 0),
            stack_of(backend, replays),
        )
        self.name = f"{backend.fsdp_cfg.param_dtype}, {'replay' if replays else 'own experts'}"
        self.sampling_s: list[float] = []
        self.measuring_s: list[float] = []

    def round(self) -> None:
        """Sample and measure once."""
        batch, seconds = timed(lambda: self.engine.rollout(prompts(), 0))
        assert batch is not None
        self.batch = batch
        self.sampling_s.append(seconds)
        self.same, seconds = timed(lambda: self.stack.measure(batch))
        self.measuring_s.append(seconds)

    def rows(self) -> list[list[str]]:
        """Return the table's rows, after an update."""
        seconds = [f"{statistics.median(one):.2f}" for one in (self.sampling_s, self.measuring_s)]
        older = self.stack.measure(self.batch)
        return [
            [self.name, "the same", *figures(distances(self.batch, self.same)), *seconds],
            [self.name, "one step older", *figures(distances(self.batch, older)), "", ""],
        ]


def measure(source: str, dtype: DType, new_tokens: int) -> list[list[str]]:
    """Return the table's rows of one format; its two settings take turns."""
    backend = backend_of(source, dtype)
    sides = [Side(backend, replays, new_tokens) for replays in (False, True)]
    for _ in range(REPEATS):
        for side in sides:
            side.round()
    batch = sides[0].batch
    assert batch.batch is not None
    signs_B = torch.arange(len(batch)) % 2 * 2.0 - 1
    batch.batch["advantages"] = batch.tensor("response_mask") * signs_B[:, None]
    sides[0].stack.train(batch)
    rows = [row for side in sides for row in side.rows()]
    for row in rows:
        print(row, flush=True)
    return rows


def figures(distance_N: Tensor) -> list[str]:
    """Return mean, largest, and the share above 0.1."""
    apart = f"{float((distance_N > 0.1).float().mean()):.1%}"
    return [f"{float(distance_N.mean()):.2g}", f"{float(distance_N.max()):.2g}", apart]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
        source = mixture(Path(folder))
        for dtype in (DType.BFLOAT16, DType.FLOAT32):
            rows += measure(source, dtype, options.new_tokens)
        dist.destroy_process_group()
    heads = ["", "weights of the rollout", "mean distance", "largest", "above 0.1"]
    intro = (
        f"`make bench-router-replay`: a random Qwen3-MoE of 4 blocks with 32 experts, "
        f"{len(QUESTIONS)} prompts x {SAMPLES} replies of up to {options.new_tokens} tokens. "
        f"{page.machine()}"
    )
    table = page.table([*heads, "sampling, CPU s", "measuring, CPU s"], rows)
    page.write_section("Router replay on a mixture of experts", f"{intro}\n\n{table}")


if __name__ == "__main__":
    main()
