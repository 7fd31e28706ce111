"""Validation, preparation and opening of a large file of prompt rows, beside the same at a tenth of
the rows: what grows with the rows is seen at once. Preparation takes longest, so that fewer rows
may be prepared than are validated.

Each step has a process of its own. Its peak is that of memory no other process or file backs
(`RssAnon`), summed over the process and its children twenty times a second: mapped files are left
out, since the kernel drops their pages when it needs room. CPU seconds are
of the process with its imports. The tokenizer splits at spaces: preparation is timed, and no
particular tokenizer.

    make bench-validate ROWS=10000000 PREPARED=1000000
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.validate import generate

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
    "{% if add_generation_prompt %}assistant{% endif %}"
)
MIB = 2**20


def tokenizer() -> Any:
    """Return a tokenizer that splits at spaces."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")
    made.chat_template = TEMPLATE
    return made


def validate(file: Path, folder: Path) -> dict[str, float]:
    """Run the checks of `rl-train validate`."""
    from rl_core.data.check.files import check_files
    from rl_core.data.check.parts import CheckSettings
    from rl_core.envs import accepted_ground_truths

    started = time.perf_counter()
    settings = CheckSettings(accepted_ground_truths())
    report = check_files([file], settings, rejects_dir=folder, memo_dir=folder / "memo")
    return {"rows": report.num_accepted, "seconds": time.perf_counter() - started}


def prepare(file: Path, folder: Path) -> dict[str, float]:
    """Prepare the rows as the task `prepare-cache` does."""
    from rl_core.data.prepare.prompts import PreparationSettings, prepare_cache
    from rl_core.envs import accepted_ground_truths

    settings = PreparationSettings(
        name="size",
        tokenizer_id="spaces",
        max_prompt_length=256,
        cache_root=folder / "cache",
        memo_dir=folder / "memo",
        allowed_env_classes=accepted_ground_truths(),
    )
    started = time.perf_counter()
    receipt = prepare_cache([file], [], settings, tokenizer=tokenizer)
    return {"rows": receipt.num_train_rows, "seconds": time.perf_counter() - started}


def opening(_file: Path, folder: Path) -> dict[str, float]:
    """Open the prepared rows as a driver does, and draw a batch."""
    from rl_core.data.order.prompt_source import PromptSource
    from rl_core.data.store.prompt_rows import load_prepared

    (prepared,) = folder.glob("cache/*/train.parquet")
    import pyarrow.parquet  # noqa: F401

    before, started = anonymous_bytes("self"), time.perf_counter()
    source = PromptSource(load_prepared(prepared), 1024, seed=0)
    drawn = source.next_batch()
    seconds = time.perf_counter() - started
    del drawn
    held = (anonymous_bytes("self") - before) / len(source.items)
    return {"rows": len(source.items), "seconds": seconds, "bytes_a_row": held}


STEPS: dict[str, Callable[[Path, Path], dict[str, float]]] = {
    "validate": validate,
    "prepare": prepare,
    "first opening": opening,
    "opening": opening,
}


def anonymous_bytes(pid: int | str) -> int:
    """Return the memory of a process that no file backs; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    sizes = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
    return 1024 * int(sizes[0]) if sizes else 0


def tree_bytes(pid: int) -> int:
    """Return the same, summed over a process and all below it."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(one) for task in tasks for one in (task / "children").read_text().split()]
    except OSError:
        return 0
    return anonymous_bytes(pid) + sum(map(tree_bytes, children))


def measured(step: str, file: Path, folder: Path) -> dict[str, float]:
    """Run a step in a new process, and return its figures with the peak of its memory."""
    command = [sys.executable, "-m", "benchmarks.size", "--only", step, str(file), str(folder)]
    peak = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while process.poll() is None:
            peak = max(peak, tree_bytes(process.pid))
            time.sleep(0.05)
        said = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"{step} of {file} ended with {process.returncode}")
    return json.loads(said.splitlines()[-1]) | {"peak": peak}


def figures(num_rows: int, steps: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the figures of some steps over so many rows."""
    with tempfile.TemporaryDirectory() as place:
        file, folder = Path(place) / "rows.parquet", Path(place) / "home"
        folder.mkdir()
        generate(file, num_rows)
        found = {step: measured(step, file, folder) for step in steps}
    for step, one in found.items():
        if one["rows"] != num_rows:
            raise SystemExit(f"{step} saw {one['rows']} of {num_rows} rows")
    return found


def main() -> None:
    """Measure both sizes, and print them side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--prepared", type=int, help="rows that are prepared and opened; unset: all of them"
    )
    parser.add_argument(
        "--only", nargs=3, metavar=("STEP", "FILE", "FOLDER"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.only:
        step, file, folder = options.only
        done = STEPS[step](Path(file), Path(folder))
        print(json.dumps(done | {"cpu_seconds": time.process_time()}))
        return
    print("| rows | step | seconds | CPU s | rows/s | peak of processes | in the driver, per row |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    prepared = min(options.rows, options.prepared or options.rows)
    sizes = {rows: list(STEPS) for rows in (max(1024, prepared // 10), prepared)}
    if options.rows > prepared:
        sizes[options.rows] = ["validate"]
    for num_rows, steps in sizes.items():
        for step, one in figures(num_rows, steps).items():
            held = f"{one['bytes_a_row']:.1f} bytes" if "bytes_a_row" in one else ""
            print(
                f"| {num_rows:,} | {step} | {one['seconds']:.1f} | {one['cpu_seconds']:.1f} | "
                f"{num_rows / one['seconds']:,.0f} | {one['peak'] / MIB:,.0f} MiB | {held} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
