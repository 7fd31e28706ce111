"""`make bench-gpu`: a step of the recipe `text` on one GPU, by FSDP2 over NCCL, compared with TRL's
on the same GPU.

    python -m benchmarks.gpu [--model 1.1B] [--steps 3] [--warm-up 2] [--settings bf16] [--lora]
        [--prompts 16] [--samples 8] [--new-tokens 256] [--peer PYTHON] [--alone] [--write]
        [key=value ...]

Settings, sides and turns are those of `benchmarks.trl`; the model has random weights, the profile
is `one_gpu`. Peak memory is that of tensors on the GPU. Utilisation is the rate of the
floating-point operations that the model needs, divided by the rate of one large bfloat16 product,
measured in the same run: 6 for every weight and token trained (arXiv 2204.02311, appendix B), of
the head only for replies, and those of causal attention. A prompt counts once for each of its rows,
though our side computes it once. Both sides are on the GPU at once; with all weights and
`bf16-one-pass` they need more than 80 GB. `--alone` leaves TRL out. `--peer` is a Python that has
TRL, if .venv-trl has no CUDA.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer

from benchmarks import page
from benchmarks.page import JsonObject
from benchmarks.random_models import RandomModels
from benchmarks.trl import (
    PEER,
    PHASES,
    SETTINGS,
    Steps,
    better,
    rows_of,
    summary,
    take_turns,
    write_prompts,
)

SIZE = 8192
"""Number of rows and columns of the product that sets the rate."""
HEADS = [
    "setting",
    "side",
    "generate s (CPU s)",
    "train s (CPU s)",
    "step s (CPU s)",
    "generated tokens/s",
]


def main() -> None:
    """Take all steps and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="1.1B", help="a shape of benchmarks/random_models.py")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["bf16"])
    parser.add_argument(
        "--lora", action="store_true", help="adapters of rank 16 instead of all weights"
    )
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument(
        "--examples", type=int, default=0, help="solved ones in front of each prompt"
    )
    parser.add_argument("--peer", default=str(PEER), help="a Python that has TRL")
    parser.add_argument("--alone", action="store_true", help="without TRL")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/benchmarks.md"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit(
            "bench-gpu needs a GPU that torch can use; torch.cuda.is_available() says there is none"
        )
    found: dict[tuple[str, str], list[Steps]] = {}
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = RandomModels(folder)[args.model]
        settings: JsonObject = {}
        for setting in args.settings:
            print(setting, flush=True)
            settings = settings_of(args, setting, model, folder)
            sides = take_turns(settings, args, folder, None if args.alone else args.peer)
            found |= {(setting, side.name): [side.steps] for side in sides}
            versions |= sides[-1].versions
        operations = operations_of(args, model, Path(settings["prompts"]))
    sums = {key: summary(runs, args.warm_up) for key, runs in found.items()}
    rate = operations_per_s()
    report(args, sums, versions, operations, rate)


def settings_of(args: argparse.Namespace, setting: str, model: str, folder: Path) -> JsonObject:
    """Return the settings that both sides get."""
    return {
        **SETTINGS[setting],
        "model": model,
        "prompts": str(
            write_prompts(folder, args.prompts * (args.warm_up + args.steps), args.examples)
        ),
        "num_prompts": args.prompts,
        "samples": args.samples,
        "new_tokens": args.new_tokens,
        "forced": True,
        "lora": {"r": 16, "lora_alpha": 32} if args.lora else None,
        "learning_rate": 1e-6,
        "checkpointing": False,
        "device": "cuda",
        "threads": 8,
        "seed": 0,
        "overrides": args.overrides,
    }


def operations_of(args: argparse.Namespace, model: str, prompts: Path) -> float:
    """Return the floating-point operations of a training step over all rows, without gradients of
    frozen weights."""
    config, tokenizer = AutoConfig.from_pretrained(model), AutoTokenizer.from_pretrained(model)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    lengths = []
    for row in rows:
        lengths.append(
            len(
                tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)[
                    "input_ids"
                ]
            )
        )
    return step_operations(
        config,
        args.prompts * args.samples,
        statistics.mean(lengths),
        args.new_tokens,
        is_frozen=args.lora,
    )


def step_operations(
    config: Any, num_rows: int, prompt: float, reply: float, *, is_frozen: bool
) -> float:
    """Return the floating-point operations of a training step. Args: prompt, reply: tokens of a
    row. is_frozen: without gradients of the model's weights, as under adapters."""
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    attention = config.hidden_size * config.head_dim * (heads + config.num_attention_heads)
    blocks = config.num_hidden_layers * (
        attention + 3 * config.hidden_size * config.intermediate_size
    )
    forward = 2 * (blocks * (prompt + reply) + config.hidden_size * config.vocab_size * reply)
    # Scores and what they weigh, 2 operations each, of half of the pairs.
    width = config.num_attention_heads * config.head_dim
    looks = 2 * config.num_hidden_layers * width * (prompt + reply) ** 2
    return num_rows * ((2 if is_frozen else 3) * forward + 3 * looks)


def operations_per_s() -> float:
    """Return the floating-point operations per second of one large bfloat16 product."""
    left, right = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    took = []
    for _ in range(10):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        left @ right
        end.record()
        end.synchronize()
        took.append(start.elapsed_time(end) / 1e3)
    return 2 * SIZE**3 / statistics.median(took)


def times_less(sums: dict[tuple[str, str], JsonObject]) -> str:
    """Describe the ratios of TRL's time in its faster setting to ours; empty without TRL."""
    if not any(side == "TRL" for _, side in sums):
        return ""
    setting, peer = better(sums)
    lines = []
    for (ours, side), one in sums.items():
        if side != "TRL":
            cells = [f"{peer[phase][0] / one[phase][0]:.1f}" for phase in PHASES]
            lines.append(
                [f"{ours} beside TRL's {setting}", *cells, f"{peer['memory'] / one['memory']:.1f}"]
            )
    return "\n\n" + page.table(["times less", *PHASES, "memory"], lines)


def report(
    args: argparse.Namespace,
    sums: dict[tuple[str, str], JsonObject],
    versions: dict[str, str],
    operations: float,
    rate: float,
) -> None:
    """Print the table, and write it if asked."""
    lines = rows_of(sums)
    for line, one in zip(lines, sums.values(), strict=True):
        line.append(f"{100 * operations / one['train'][0] / rate:.1f}")
    table = page.table([*HEADS, "tokens/s overall", "peak GB", "utilisation %"], lines)
    command = shlex.join(
        ["python", "-m", "benchmarks.gpu", *(word for word in sys.argv[1:] if word != "--write")]
    )
    trained = "adapters of rank 16" if args.lora else "all weights"
    longer = f", {args.examples} solved examples in front of each prompt" if args.examples else ""
    peer = f", TRL {versions['trl']}" if "trl" in versions else ""
    body = (
        f"`{command}`: {args.model} random weights, {trained}, no KL, {args.prompts} prompts x "
        f"{args.samples} samples x {args.new_tokens} tokens{longer}; medians of {args.steps} "
        f"steps after {args.warm_up}. {torch.cuda.get_device_name()}, on which one product "
        f"reaches {rate / 1e12:.0f} TFLOP/s; {page.machine()}{peer}. Training needs "
        f"{operations / 1e12:.0f} TFLOP.\n\n{table}{times_less(sums)}"
    )
    print(f"\n{body}")
    if args.write:
        page.write_section(
            f"A step on a GPU, {args.model}, {trained}{', longer prompts' if longer else ''}", body
        )


if __name__ == "__main__":
    main()
