"""`make bench-trl`: a GRPO step compared with TRL's, with the same prompts, sampling and number of
tokens, in turns.

    python -m benchmarks.trl [--steps 3] [--warm-up 2] [--settings bf16 fp32] [--lora] [--threads 2]
        [--seeds 1] [--free] [--examples 0] [--checkpointing] [--write] [key=value ...]

SmolLM2-135M, 8 prompts x 8 samples x 64 tokens, no KL. Each setting starts one process per side and
keeps it for all its steps; one side works at a time. The median of the steps after the warm-up
counts; in the warm-up both sides allocate their memory. `fp32` computes in float32, `bf16` in
bfloat16 with float32 master weights (for TRL autocast, its default), `bf16-weights` without them.
TRL takes the samples of one prompt in a pass and accumulates gradients; with `bf16-one-pass` it
takes all rows of the step at once. Both sides train all samples, including those without advantage.
Peak memory is that of the process. CPU seconds are printed next to wall-clock seconds, since other
load lengthens them less. `--free` lets replies end by themselves, uses a learning rate with an
effect after few steps, and compares rewards instead, over `--seeds` seeds; our side then leaves out
samples without advantage, as a user's run does. `--examples` makes the prompts longer, by this many
solved examples in front of each. `key=value` changes our recipe. `--write` puts the tables into
docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks import page
from benchmarks.page import JsonObject
from benchmarks.products import least_ms
from benchmarks.random_models import MODEL
from rl_core.builtin.data.reasoning_problems import GenerateSpec, materialise
from rl_core.kernels import has_bfloat16_products, packed_weights
from rl_core.models.locate import locate
from rl_core.runs.recipes import load_recipe
from rl_core.runtime.home import Home

ROOT = Path(__file__).parents[1]
PEER = ROOT / ".venv-trl" / "bin" / "python"
SETTINGS = {
    "fp32": {"weights": "float32", "autocast": False, "one_pass": False},
    "bf16": {"weights": "float32", "autocast": True, "one_pass": False},
    "bf16-one-pass": {"weights": "float32", "autocast": True, "one_pass": True},
    "bf16-weights": {"weights": "bfloat16", "autocast": False, "one_pass": False},
}
NUM_WEIGHTS = 134_515_008
PRODUCTS = 50
"""Number of products of one size, of which the fastest counts."""
Steps = list[JsonObject]
"""Figures of a run's steps, in order."""
PHASES = ("generate", "train", "step")
TARGETS = {"generate": 2.5, "train": 6.0, "step": 5.0, "memory": 4.0}
"""Target ratios of TRL's better setting to ours."""


class Side:
    """A process that takes steps when told to."""

    def __init__(self, name: str, command: list[str], settings: JsonObject, log: Path) -> None:
        self.name, self.log = name, log
        self.steps: Steps = []
        environment = os.environ | {"HF_HUB_OFFLINE": "1"}
        environment["OMP_NUM_THREADS"] = str(settings["threads"])
        self._errors = log.open("w")
        self._process = subprocess.Popen(
            [*command, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=ROOT,
            env=environment,
        )
        self.versions: dict[str, str] = {}

    def wait(self) -> None:
        """Wait until the process is ready."""
        self.versions = self._hear()["ready"]

    def step(self) -> JsonObject:
        """Let the process take one step, and return its figures."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        self.steps.append(self._hear())
        return self.steps[-1]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._errors.close()

    def _hear(self) -> JsonObject:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(
                f"{self.name} ended without an answer:\n{self.log.read_text()[-3000:]}"
            )
        return json.loads(line)


def take_turns(
    settings: JsonObject, args: argparse.Namespace, folder: Path, peer: str | None
) -> list[Side]:
    """Let both sides take all their steps in turn. Args: peer: TRL's Python; None leaves TRL
    out."""
    commands = {"rl-train": [sys.executable, "-m", "benchmarks.trl_ours"]}
    if peer is not None:
        commands["TRL"] = [peer, "-P", str(ROOT / "benchmarks" / "trl_peer.py")]
    sides: list[Side] = []
    try:
        for name, command in commands.items():
            sides.append(Side(name, command, settings, folder / f"{name}.log"))
        for side in sides:
            side.wait()
        for number in range(args.warm_up + args.steps):
            for side in sides:
                figures = side.step()
                spans = "  ".join(
                    f"{phase} {figures[phase][0]:6.1f} s ({figures[phase][1]:6.1f} CPU)"
                    for phase in PHASES
                )
                note = "  (warm-up)" if number < args.warm_up else ""
                print(f"  {side.name:8} {spans}  reward {figures['reward']:.2f}{note}", flush=True)
    finally:
        for side in sides:
            side.close()
    return sides


def summary(runs: list[Steps], warm_up: int) -> JsonObject:
    """Return medians of (wall, CPU) seconds over the steps that count, and the peak memory."""
    counted = [step for steps in runs for step in steps[warm_up:]]
    medians = {
        phase: [statistics.median(step[phase][k] for step in counted) for k in (0, 1)]
        for phase in PHASES
    }
    tokens = statistics.median(step["tokens"] for step in counted)
    return {**medians, "tokens": tokens, "memory": max(step["peak_bytes"] for step in counted)}


def rows_of(found: dict[tuple[str, str], JsonObject]) -> list[list[str]]:
    """Return a line per setting and side."""
    lines = []
    for (setting, side), one in found.items():
        cells = [f"{one[phase][0]:.1f} ({one[phase][1]:.1f})" for phase in PHASES]
        speeds = [f"{one['tokens'] / one[phase][0]:.0f}" for phase in ("generate", "step")]
        lines.append([setting, side, *cells, *speeds, f"{one['memory'] / 1e9:.1f}"])
    return lines


def better(found: dict[tuple[str, str], JsonObject]) -> tuple[str, JsonObject]:
    """Return TRL's faster setting and its figures."""
    peers = [(setting, one) for (setting, side), one in found.items() if side == "TRL"]
    return min(peers, key=lambda pair: pair[1]["step"][0])


def ratios(found: dict[tuple[str, str], JsonObject], least: Least) -> list[list[str]]:
    """Describe the ratios of TRL's better setting to ours, with the targets and the theoretical
    limits."""
    setting, peer = better(found)
    lines = []
    for (ours, side), one in found.items():
        if side != "TRL":
            wall, cpu = ([peer[phase][k] / one[phase][k] for phase in PHASES] for k in (0, 1))
            cells = [f"{a:.1f} ({b:.1f})" for a, b in zip(wall, cpu, strict=True)]
            lines.append(
                [f"{ours} beside TRL's {setting}", *cells, f"{peer['memory'] / one['memory']:.1f}"]
            )
    limits = [peer[phase][0] / getattr(least, f"{phase}_s") for phase in PHASES]
    return [
        *lines,
        ["target", *(f"{TARGETS[phase]:.1f}" for phase in (*PHASES, "memory"))],
        ["limit", *(f"{limit:.1f}" for limit in (*limits, peer["memory"] / least.num_bytes))],
    ]


def rewards_of(found: dict[tuple[str, str], list[Steps]]) -> list[list[str]]:
    """Return a line per setting and side: the mean reward of each third of the steps over all
    seeds, that of the last third by seed, and the seconds of each seed's steps."""
    lines = []
    for (setting, side), runs in found.items():
        third = max(len(runs[0]) // 3, 1)
        parts = [slice(None, third), slice(third, -third), slice(-third, None)]
        thirds = [
            [statistics.mean(step["reward"] for step in steps[part]) for steps in runs]
            for part in parts
        ]
        by_seed = " ".join(f"{reward:.3f}" for reward in thirds[-1])
        seconds = " ".join(f"{sum(step['step'][0] for step in steps):.0f}" for steps in runs)
        means = [f"{statistics.mean(rewards):.3f}" for rewards in thirds]
        lines.append([setting, side, *means, by_seed, seconds])
    return lines


@dataclass(frozen=True)
class Least:
    """Lower bounds of a step's time and memory on this machine."""

    generate_s: float
    train_s: float
    num_bytes: int

    @property
    def step_s(self) -> float:
        return self.generate_s + self.train_s


def least(args: argparse.Namespace) -> Least:
    """Return the seconds of the matrix products alone, in `product_format`, and the bytes that an
    optimizer step reads and writes.

    Products take 2 operations per weight and token forward, 2 for the gradients of their inputs
    and, if weights are trained, 2 for theirs, at the rate that a product of the model's size
    reaches here. Prompts and attention are left out. Trained weights are in float32, with a
    gradient and Adam's two moments; with adapters, which are left out, weights are in
    `product_format`.
    """
    torch.set_num_threads(args.threads)
    dtype = getattr(torch, product_format())
    sampling, training = (
        operations_per_s(num_rows, dtype) for num_rows in (args.prompts * args.samples, 1024)
    )
    forward = 2 * NUM_WEIGHTS * args.prompts * args.samples * args.new_tokens
    num_bytes = NUM_WEIGHTS * (dtype.itemsize if args.lora else 4 * torch.float32.itemsize)
    return Least(forward / sampling, (2 if args.lora else 3) * forward / training, num_bytes)


def operations_per_s(num_rows: int, dtype: torch.dtype) -> float:
    """Return the operations per second of a product of `num_rows` rows with a layer of the model,
    with the faster of a packed and a plain weight."""
    layer, states = (
        torch.nn.Linear(576, 1536, bias=False, dtype=dtype),
        torch.randn(num_rows, 576, dtype=dtype),
    )
    with torch.no_grad():
        took_ms = [least_ms(lambda: layer(states), PRODUCTS)]
        with packed_weights(layer):
            took_ms.append(least_ms(lambda: layer(states), PRODUCTS))
    return 2 * num_rows * layer.weight.numel() / (min(took_ms) / 1e3)


def product_format() -> str:
    """Return the narrowest format in which this processor multiplies."""
    return "bfloat16" if has_bfloat16_products() else "float32"


def write_prompts(folder: Path, num_rows: int, num_examples: int = 0) -> Path:
    """Write the training rows of the recipe `text`, repeated, as both sides read them.

    Args: num_examples: number of other rows, solved, in front of each.
    """
    spec = GenerateSpec.model_validate(load_recipe("text").data.train[0])
    rows = [json.loads(line) for line in materialise(spec, folder).read_text().splitlines()]
    path = folder / "prompts.jsonl"
    with path.open("w") as file:
        for number in range(num_rows):
            *others, row = (
                rows[(number + ahead) % len(rows)] for ahead in range(num_examples, -1, -1)
            )
            prompt = [message for other in others for message in _solved(other)] + row["prompt"]
            line = {"prompt": prompt, "answer": _answer(row), "row": row | {"prompt": prompt}}
            file.write(json.dumps(line) + "\n")
    return path


def _solved(row: JsonObject) -> list[dict[str, str]]:
    """Return the messages of a row, with the answer."""
    return [*row["prompt"], {"role": "assistant", "content": _answer(row)}]


def _answer(row: JsonObject) -> str:
    return str(row["reward_spec"]["ground_truth"])


def main() -> None:
    """Run every setting and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=["bf16", "fp32"])
    parser.add_argument(
        "--lora", action="store_true", help="adapters of rank 16 instead of all weights"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--free", action="store_true", help="replies end by themselves")
    parser.add_argument(
        "--examples", type=int, default=0, help="solved ones in front of each prompt"
    )
    parser.add_argument(
        "--checkpointing", action="store_true", help="let TRL recompute activations, its default"
    )
    parser.add_argument(
        "--write", action="store_true", help="put the tables into docs/benchmarks.md"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_args()
    if args.free and args.warm_up + args.steps < 3:
        parser.error(
            "--free compares thirds of a run: --warm-up and --steps together must be 3 or more"
        )
    if not PEER.is_file():
        raise SystemExit(
            f"{PEER.relative_to(ROOT)} is missing: run make bench-trl, which builds it"
        )
    found: dict[tuple[str, str], list[Steps]] = defaultdict(list)
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(args.seeds):
            for setting in args.settings:
                print(f"{setting}, seed {seed}{', LoRA' if args.lora else ''}", flush=True)
                sides = take_turns(
                    settings_of(args, setting, seed, folder), args, folder, str(PEER)
                )
                for side in sides:
                    found[setting, side.name].append(side.steps)
                versions |= sides[1].versions
    (report_rewards if args.free else report)(args, found, versions)


def settings_of(args: argparse.Namespace, setting: str, seed: int, folder: Path) -> JsonObject:
    """Return the settings that both sides get."""
    return {
        **SETTINGS[setting],
        "model": locate(MODEL, Home.default().models),
        "prompts": str(
            write_prompts(folder, args.prompts * (args.warm_up + args.steps), args.examples)
        ),
        "num_prompts": args.prompts,
        "samples": args.samples,
        "new_tokens": args.new_tokens,
        "forced": not args.free,
        "lora": {"r": 16, "lora_alpha": 32} if args.lora else None,
        "learning_rate": learning_rate(args),
        "checkpointing": args.checkpointing,
        "device": "cpu",
        "threads": args.threads,
        "seed": seed,
        "overrides": args.overrides,
    }


def report(
    args: argparse.Namespace, found: dict[tuple[str, str], list[Steps]], versions: dict[str, str]
) -> None:
    """Print the tables of times, and put them into docs/benchmarks.md if asked."""
    sums = {key: summary(runs, args.warm_up) for key, runs in found.items()}
    heads = ["setting", "side", "generate s (CPU s)", "train s (CPU s)", "step s (CPU s)"]
    first = page.table([*heads, "generated tokens/s", "tokens/s overall", "peak GB"], rows_of(sums))
    needed = least(args)
    second = page.table(
        ["times less", "generate (CPU)", "train (CPU)", "step (CPU)", "memory"],
        ratios(sums, needed),
    )
    body = (
        f"`{command()}`: {about(args)}; medians of {args.steps} steps after {args.warm_up}. "
        f"{page.machine()}, TRL {versions['trl']}.\n\n{first}\n\n{second}\n\nThe limit is what "
        "no way of computing all of it exceeds here: the matrix products alone take "
        f"{needed.generate_s:.1f} s to generate and {needed.train_s:.1f} s to train, in "
        f"{product_format()} at the rate of one product by itself, measured after the steps; "
        f"{kept(args)} alone are {needed.num_bytes / 1e9:.1f} GB."
    )
    publish(args, "A step", body)


def report_rewards(
    args: argparse.Namespace, found: dict[tuple[str, str], list[Steps]], versions: dict[str, str]
) -> None:
    """Print the rewards, and put them into docs/benchmarks.md if asked."""
    heads = [
        "setting",
        "side",
        "first third",
        "second",
        "last",
        "last, seed by seed",
        "all steps s, seed by seed",
    ]
    body = (
        f"`{command()}`: {about(args)} at most, learning rate {learning_rate(args):g}; mean "
        f"rewards (the share of right answers while sampling) of {args.warm_up + args.steps} "
        f"steps on the same prompts in the same order. {page.machine()}, TRL "
        f"{versions['trl']}.\n\n{page.table(heads, rewards_of(found))}"
    )
    publish(args, "Rewards", body)


def about(args: argparse.Namespace) -> str:
    """Describe the model and the sizes of the step."""
    sizes = f"{args.prompts} prompts x {args.samples} samples x {args.new_tokens} tokens"
    if args.examples:
        sizes += f", {args.examples} solved examples in front of each prompt"
    return f"SmolLM2-135M, {trained(args)}, no KL, {args.threads} threads, {sizes}"


def command() -> str:
    """Return the command line without `--write`."""
    return shlex.join(
        ["python", "-m", "benchmarks.trl", *(word for word in sys.argv[1:] if word != "--write")]
    )


def learning_rate(args: argparse.Namespace) -> float:
    """Return a learning rate with an effect after few steps if rewards are compared, else a small
    one."""
    if not args.free:
        return 1e-6
    return 5e-4 if args.lora else 5e-5


def trained(args: argparse.Namespace) -> str:
    """Describe the trained weights."""
    return "adapters of rank 16" if args.lora else "all weights"


def kept(args: argparse.Namespace) -> str:
    """Describe the memory that a step needs at least."""
    return "the frozen weights" if args.lora else "weights, gradients and Adam's moments"


def publish(args: argparse.Namespace, what: str, body: str) -> None:
    """Print a section, and write it if asked."""
    print(f"\n{body}")
    if args.write:
        longer = ", longer prompts" if args.examples else ""
        page.write_section(f"{what} beside TRL, {trained(args)}{longer}{processor()}", body)


def processor() -> str:
    """Return a suffix of titles for the type of processor, since each type has its own sections."""
    if torch.cpu._is_amx_tile_supported():
        return ""
    return ", without tiles" if has_bfloat16_products() else ", without bfloat16"


if __name__ == "__main__":
    main()
