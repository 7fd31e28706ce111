"""`make bench-scaling`: time and memory of a GRPO step as one size grows at a time.

    python -m benchmarks.scaling [--axes samples tokens prompts examples ranks model pass_rows]
    [--threads 2] [--write]
        [key=value ...]

The settings are those of our side in `make bench-trl`: bfloat16 with float32 master weights,
replies of a fixed length, a new process for every point, two warm-up steps and one that counts.
Peak memory is compared with the size of the logits of all replies in float32, which grows with B x
T x V. `examples` makes prompts longer: 43 tokens without any, about 26 more with each. `pass_rows`
shows the time that less memory costs: the same step in passes of fewer rows. `--write` puts table
and picture into docs/benchmarks.md; runs of only some axes get their own section.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks import page
from benchmarks.page import JsonObject
from benchmarks.random_models import RandomModels
from benchmarks.trl import SETTINGS, Side, write_prompts

PICTURE = page.PAGE.parent / "images" / "scaling.png"
WARM_UP = 2
"""Number of steps until a process has allocated its memory."""


@dataclass(frozen=True)
class Point:
    """The sizes of a step."""

    prompts: int = 2
    samples: int = 8
    tokens: int = 64
    ranks: int = 1
    model: str = "135M"
    examples: int = 0
    """Number of solved examples in front of each prompt."""
    pass_rows: int = 0
    """Number of rows in a pass; 0 leaves it to the recipe."""


AXES: dict[str, list[Point]] = {
    "samples": [Point(samples=number) for number in (8, 16, 32)],
    "tokens": [Point(prompts=1, tokens=number) for number in (64, 256, 1024)],
    "prompts": [Point(prompts=number) for number in (2, 4, 8)],
    "examples": [Point(examples=number) for number in (0, 8, 32)],
    "ranks": [Point(ranks=number) for number in (1, 2)],
    "model": [Point(model=name) for name in ("tiny", "135M", "360M")],
    "pass_rows": [Point(prompts=8, pass_rows=number) for number in (4, 8, 16, 32, 64)],
}
"""Points of each axis; all but the last axis start from the same small step."""


@dataclass
class Measured:
    """Measured step of a point."""

    point: Point
    figures: JsonObject
    vocabulary: int

    @property
    def num_tokens(self) -> int:
        """Number of tokens generated in the step, over all ranks."""
        return self.figures["tokens"]

    def per_token_ms(self, phase: str) -> float:
        """Return the wall-clock milliseconds per token."""
        return 1000 * self.figures[phase][0] / self.num_tokens

    @property
    def peak_gb(self) -> float:
        """Peak memory of all ranks in GB."""
        return self.figures["peak_bytes"] / 1e9

    @property
    def logits_gb(self) -> float:
        """Size of the logits of all replies in float32, in GB."""
        return 4 * self.num_tokens * self.vocabulary / 1e9


def measure(point: Point, models: RandomModels, folder: Path, args: argparse.Namespace) -> Measured:
    """Take the steps of one point."""
    passes = [f"placement.micro_batch_size={point.pass_rows}"] if point.pass_rows else []
    settings = {
        **SETTINGS["bf16"],
        "model": models[point.model],
        "prompts": str(write_prompts(folder, point.prompts * (WARM_UP + 1), point.examples)),
        "num_prompts": point.prompts,
        "samples": point.samples,
        "new_tokens": point.tokens,
        "ranks": point.ranks,
        "device": "cpu",
        "forced": True,
        "lora": None,
        "learning_rate": 1e-6,
        "threads": args.threads,
        "seed": 0,
        "overrides": [*passes, *args.overrides],
    }
    side = Side(
        "rl-train", [sys.executable, "-m", "benchmarks.trl_ours"], settings, folder / "side.log"
    )
    try:
        side.wait()
        figures: JsonObject = {}
        for _ in range(WARM_UP + 1):
            figures = side.step()
    finally:
        side.close()
    return Measured(point, figures, vocabulary_of(models[point.model]))


def vocabulary_of(model: str) -> int:
    """Return the vocabulary size of a model."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(model).vocab_size


def row(axis: str, one: Measured) -> list[str]:
    """Return a line of the table."""
    seconds = [f"{one.figures[phase][0]:.1f}" for phase in ("generate", "train", "step")]
    per_token = [f"{one.per_token_ms(phase):.1f}" for phase in ("generate", "train", "step")]
    memory = [f"{one.peak_gb:.2f}", f"{one.logits_gb:.2f}"]
    return [
        f"{axis}: {asdict(one.point)[axis]}",
        str(one.num_tokens),
        *seconds,
        *per_token,
        *memory,
    ]


def draw(found: dict[str, list[Measured]], path: Path) -> None:
    """Draw one column per axis: milliseconds per token above, memory below."""
    figure = Figure(figsize=(3.2 * len(found), 6), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(2, len(found), squeeze=False)
    for column, (axis, points) in enumerate(found.items()):
        names = [str(asdict(one.point)[axis]) for one in points]
        upper, lower = panels[0][column], panels[1][column]
        for phase in ("generate", "train", "step"):
            upper.plot(names, [one.per_token_ms(phase) for one in points], marker="o", label=phase)
        lower.plot(names, [one.peak_gb for one in points], marker="o", label="peak of the process")
        lower.plot(
            names, [one.logits_gb for one in points], marker="o", label="B x T x V in float32"
        )
        upper.set(
            title=axis, ylabel="ms per generated token" if column == 0 else None, ylim=(0, None)
        )
        lower.set(ylabel="GB" if column == 0 else None, ylim=(0, None))
        for axes in (upper, lower):
            axes.grid(alpha=0.3)
            if column == 0:
                axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    """Measure every axis and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--axes", nargs="+", choices=AXES, default=list(AXES))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--write", action="store_true", help="put table and picture into docs/benchmarks.md"
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    args = parser.parse_args()
    known: dict[Point, Measured] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        models = RandomModels(folder)
        for axis in args.axes:
            for point in AXES[axis]:
                if point not in known:
                    known[point] = measure(point, models, folder, args)
                    print(axis, *row(axis, known[point]), sep="  ", flush=True)
    found = {axis: [known[point] for point in AXES[axis]] for axis in args.axes}
    report(found, args)


def report(found: dict[str, list[Measured]], args: argparse.Namespace) -> None:
    """Print the table; put it and the picture into docs/benchmarks.md if asked."""
    heads = [
        "what grows",
        "tokens",
        "generate s",
        "train s",
        "step s",
        "generate ms/token",
        "train ms/token",
    ]
    heads += ["step ms/token", "peak GB", "B x T x V in float32, GB"]
    lines = [row(axis, one) for axis, points in found.items() for one in points]
    base = ", ".join(
        f"{name} {value}" for name, value in asdict(replace(Point(), model="SmolLM2-135M")).items()
    )
    said = (
        f"A step with {base} (0 leaves it to the recipe); all weights trained in bfloat16, "
        f"{args.threads} threads; "
    )
    said += f"`tokens` with 1 prompt, `pass_rows` with 8. Grown here: {', '.join(found)}."
    body = f"{said} {page.machine()}\n\n{page.table(heads, lines)}\n"
    print(f"\n{body}")
    if args.write and list(found) == list(AXES):
        draw(found, PICTURE)
        page.write_section(
            "Growth: `make bench-scaling`", f"{body}\n![growth](images/{PICTURE.name})\n"
        )
    elif args.write:
        page.write_section(f"Growth: `python -m benchmarks.scaling --axes {' '.join(found)}`", body)


if __name__ == "__main__":
    main()
