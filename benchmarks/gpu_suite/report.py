"""`make gpu-report`: docs/gpu.md from the folder that `make gpu-suite` wrote.

python -m benchmarks.gpu_suite.report [--out gpu-suite] [--page docs/gpu.md]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite.notebook import read
from benchmarks.gpu_suite.parts import PARTS, Part
from benchmarks.page import table

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
HEAD = """# On a GPU

`make gpu-suite` does all that is worth doing where a GPU is at hand for a quarter of an hour, in
nine minutes at most; `make gpu-report` writes this page from what it found (`OUT=gpu-suite`). On a
machine without network or `.venv`, `python -m benchmarks.gpu_suite.wheels` here first packs what it
lacks into `.whl`, and `python3 -m benchmarks.gpu_suite --out FOLDER` there runs the suite.
`make gpu-suite DRY=1` tries the suite on a processor, with tiny shapes.

Models have random weights in the shapes of Qwen3 0.6B, Llama 3.2 1B and Qwen3 4B, 128 rows where no
other number is named. *Of the arithmetic* is the rate of the operations that training needs,
divided by the rate of one large product; *of the bandwidth* is the time in which the weights and
the keys and values of a token's step can be read, divided by the time the step took.
"""
NOT_RUN = "not run yet"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-suite"), help="folder of the results")
    parser.add_argument("--page", type=Path, default=PAGE)
    args = parser.parse_args()
    args.page.write_text(page_of(args.out), encoding="utf-8")
    print(args.page)


def page_of(folder: Path) -> str:
    """Return the page: a section for each part, and for a missing one that it was not run."""
    sections = [HEAD]
    for part in PARTS:
        sections.append(f"## {part.title}\n\n{_section(folder, part)}\n")
    return "\n".join(sections)


def _section(folder: Path, part: Part) -> str:
    said = read(folder, part)
    if said is None:
        return NOT_RUN
    ended = f"{said['status']} after {said['seconds']:.0f} s"
    if said["dry"]:
        ended = f"{NOT_RUN}; a dry run on a processor: {ended}"
    if said["reason"]:
        ended += f". {_line(said['reason'])}"
    body = SECTIONS[part.name](said["entries"]) if said["entries"] else ""
    return f"({ended})\n\n{body}".strip()


def _machine(entries: list[dict[str, Any]]) -> str:
    lines = []
    for one in entries:
        if one["kind"] == "machine":
            versions = ", ".join(f"{name} {number}" for name, number in one["versions"].items())
            lines.append(
                f"{one['device']}, {one['cores']} cores, Python {one['python']}, {versions}."
            )
        elif one["kind"] == "rates":
            lines.append(_rates(one))
        elif one["level"] != "good":
            lines.append(f"* {one['level']}, {one['name']}: {_line(one['found'])}")
    return "\n".join(lines)


def _rates(one: dict[str, Any]) -> str:
    return (
        f"One product in bfloat16 reaches {one['operations_per_s'] / 1e12:.1f} TFLOP/s, a copy "
        f"{one['bytes_per_s'] / 1e12:.2f} TB/s.\n"
    )


def _tests(entries: list[dict[str, Any]]) -> str:
    rows, failed = [], []
    for one in entries:
        if "passed" in one:
            rows.append([one["file"], str(one["passed"]), str(len(one["failed"]))])
            why = "; ".join(one["why"])
            rows[-1].append(f"{one['num_skipped']} {_line(why)}".strip())
            failed += [f"* {_line(name)}" for name in one["failed"]]
        else:
            rows.append([one["file"], "", "", _line(one.get("skipped") or one["broken"])])
    lines = [table(["file", "passed", "failed", "skipped"], rows)]
    return "\n".join([*lines, *(["", *failed] if failed else [])])


def _recipes(entries: list[dict[str, Any]]) -> str:
    rows = []
    for one in entries:
        if "skipped" in one:
            rows.append([one["recipe"], "", one["skipped"]])
        else:
            said = _line(one["said"].splitlines()[-1] if one["said"] else "")
            rows.append([one["recipe"], f"{one['seconds']:.0f}", f"status {one['status']}: {said}"])
    return table(["recipe", "seconds", "end"], rows)


def _speed(entries: list[dict[str, Any]]) -> str:
    rows, notes = [], []
    for one in entries:
        if one["kind"] == "rates":
            notes.append(_rates(one))
        elif one["kind"] == "broken":
            notes.append(f"* {one['shape']} broke: {_line(one['reason'][-200:])}")
        elif "no_memory" in one:
            rows.append([*_sizes(one), "did not fit", *[""] * 6])
        else:
            rows.append([*_sizes(one), *_figures(one)])
    heads = ["model", "trained", "rows", "prompt", "reply", "generate s", "train s", "step s"]
    heads += ["tokens/s", "of the arithmetic", "of the bandwidth", "peak GB"]
    return "\n".join([*notes, table(heads, rows)])


def _sizes(one: dict[str, Any]) -> list[str]:
    rows = one["num_prompts"] * one["samples"]
    trained = "adapters" if one["lora"] else "all"
    return [one["shape"], trained, str(rows), str(one["prompt"]), str(one["reply"])]


def _figures(one: dict[str, Any]) -> list[str]:
    times = [f"{one[phase]:.2f}" for phase in ("generate", "train", "step")]
    shares = [f"{100 * one[share]:.0f} %" for share in ("train_share", "decode_share")]
    return [*times, f"{one['tokens_per_s']:.0f}", *shares, f"{one['peak_bytes'] / 1e9:.1f}"]


def _peer(entries: list[dict[str, Any]]) -> str:
    rows = []
    for one in entries:
        if one["kind"] == "side":
            times = [f"{one['figures'][phase][0]:.2f}" for phase in ("generate", "train", "step")]
            memory = f"{one['figures']['memory'] / 1e9:.1f}"
            rows.append([one["side"], *_sizes(one), *times, memory])
    heads = ["side", "model", "trained", "rows", "prompt", "reply"]
    return table([*heads, "generate s", "train s", "step s", "peak GB"], rows)


def _kernels(entries: list[dict[str, Any]]) -> str:
    rows = []
    for one in entries:
        for kernel in one["kernels"]:
            share = f"{100 * kernel['share']:.1f} %"
            name = f"`{_line(kernel['name'])}`"
            rows.append([one["phase"], name, f"{kernel['ms']:.1f}", str(kernel["calls"]), share])
    return table(["phase", "kernel", "ms", "calls", "share"], rows)


def _ranks(entries: list[dict[str, Any]]) -> str:
    rows = []
    for one in entries:
        memory = f"{one['peak_bytes'] / 1e9:.1f}"
        rows.append([one["way"], f"{one['train']:.3f}", f"{one['step']:.3f}", memory])
    return table(["way", "train s", "step s", "peak GB"], rows)


def _line(text: str) -> str:
    """Return text that fits into a cell."""
    return " ".join(text.split()).replace("|", "/")[:300]


SECTIONS: dict[str, Callable[[list[dict[str, Any]]], str]] = {
    "machine": _machine,
    "gpu_tests": _tests,
    "recipes": _recipes,
    "speed": _speed,
    "peer": _peer,
    "kernels": _kernels,
    "ranks": _ranks,
}


if __name__ == "__main__":
    main()
