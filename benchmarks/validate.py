"""Validation of a SkyRL Parquet file, compared with the plain loop over rows in SkyRL's
documentation (section 7).

Both run in their own process, one after the other, on the same file; peak memory is counted above
that after the imports, CPU seconds over all threads. The loop is timed alone, without
`load_dataset`, which it needs first. The comparison with held-out rows, which validation does
besides where there are some, is timed on the same file: `HELD_OUT` rows in the same template, of
which `REPEATED` ask what a training row asks, in capitals.

    python -m benchmarks.validate [--rows 1000000]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CHUNK = 50_000
ROUNDS = 3
HELD_OUT, REPEATED = 2_000, 20


def generate(path: Path, num_rows: int) -> None:
    """Write a GSM8K-like file with different rows, in row groups of `CHUNK`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer = None
    for start in range(0, num_rows, CHUNK):
        table = pa.Table.from_pylist([_row(i) for i in range(start, min(num_rows, start + CHUNK))])
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def _row(i: int) -> dict:
    question = (
        f"Janet has {i} apples. She buys {i % 97} more apples. How many apples does Janet have now?"
    )
    suffix = ' Let\'s think step by step and output the final answer after "####".'
    answer = i + i % 97
    return {
        "data_source": "openai/gsm8k",
        "prompt": [
            {"role": "system", "content": "You are a math tutor."},
            {"role": "user", "content": question + suffix},
        ],
        "env_class": "gsm8k",
        "reward_spec": {"method": "rule", "ground_truth": str(answer)},
        "extra_info": {
            "split": "train",
            "index": i,
            "answer": f"Janet starts with {i}. {i} + {i % 97} = {answer}.\n#### {answer}",
            "question": question,
        },
    }


def peak_mib() -> float:
    """Return the peak memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def plain_loop(path: str, cache: str) -> dict[str, float]:
    """Run the documentation's checks, row by row."""
    from datasets import disable_progress_bars, load_dataset

    disable_progress_bars()
    before, start = peak_mib(), time.perf_counter()
    dataset = load_dataset("parquet", data_files=path, cache_dir=cache)["train"]
    loaded, cpu = time.perf_counter(), time.process_time()
    errors = []
    num_rows = 0
    for i, item in enumerate(dataset):
        num_rows += 1
        for field in ("prompt", "env_class", "reward_spec"):
            if field not in item:
                errors.append(f"Row {i}: Missing '{field}'")
        prompt = item.get("prompt")
        if not isinstance(prompt, list):
            errors.append(f"Row {i}: 'prompt' must be a list")
        elif not any(message.get("role") == "user" for message in prompt):
            errors.append(f"Row {i}: No 'user' message in prompt")
        if "ground_truth" not in item.get("reward_spec", {}):
            errors.append(f"Row {i}: Missing 'ground_truth' in reward_spec")
    end = time.perf_counter()
    return {
        "rows": num_rows,
        "errors": len(errors),
        "seconds": end - loaded,
        "cpu_seconds": time.process_time() - cpu,
        "load_seconds": loaded - start,
        "mib": peak_mib() - before,
    }


def validation(path: str, folder: str) -> dict[str, float]:
    """Run the checks of `rl-train validate`, including the sha256 of the file."""
    import pandas  # noqa: F401
    import pandera.pandas  # noqa: F401
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401

    from rl_core.data.check.files import check_files
    from rl_core.data.check.parts import CheckSettings
    from rl_core.envs import accepted_ground_truths

    settings = CheckSettings(accepted_ground_truths())
    before, start, cpu = peak_mib(), time.perf_counter(), time.process_time()
    report = check_files([path], settings, rejects_dir=folder, memo_dir=folder)
    return {
        "rows": report.num_rows,
        "errors": report.num_rejected,
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "mib": peak_mib() - before,
    }


def comparison(path: str, folder: str) -> dict[str, float]:
    """Compare the rows with held-out rows; errors are rows that were found or missed wrongly."""
    import pyarrow.parquet
    from datasketch import MinHash, MinHashLSH  # noqa: F401

    from rl_core.data.overlap.found import overlaps_of
    from rl_core.data.overlap.sides import sides_of
    from schemas.sections.training import ContaminationPolicy

    num_rows = pyarrow.parquet.ParquetFile(path).metadata.num_rows
    repeated = {number: _row(number) for number in range(0, num_rows, num_rows // REPEATED)}
    for row in repeated.values():
        row["prompt"][1]["content"] = row["prompt"][1]["content"].upper()
    others = [_row(num_rows + number) for number in range(HELD_OUT - len(repeated))]
    held_out = Path(folder) / "eval.jsonl"
    lines = [json.dumps(row) + "\n" for row in (*repeated.values(), *others)]
    held_out.write_text("".join(lines), encoding="utf-8")
    before, start, cpu = peak_mib(), time.perf_counter(), time.process_time()
    found = overlaps_of(
        *sides_of([path], [held_out], [], folder), ContaminationPolicy.REPORT, folder
    )
    return {
        "rows": num_rows,
        "errors": len({number + 1 for number in repeated} ^ found.rows.get(path, set())),
        "seconds": time.perf_counter() - start,
        "cpu_seconds": time.process_time() - cpu,
        "mib": peak_mib() - before,
    }


def measured(which: str, path: Path) -> dict[str, float]:
    """Measure one side in a new process."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        command = [sys.executable, "-m", "benchmarks.validate", "--only", which, str(path), folder]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Generate, measure in turn, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument(
        "--only", nargs=3, metavar=("WHICH", "PATH", "FOLDER"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.only:
        which, path, folder = options.only
        sides = {"loop": plain_loop, "validation": validation, "comparison": comparison}
        print(json.dumps(sides[which](path, folder)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.parquet"
        generate(path, options.rows)
        print(f"{options.rows:,} rows, {path.stat().st_size / 2**20:.0f} MiB of Parquet")
        ours = [measured("validation", path)]
        loop = measured("loop", path)
        ours += [measured("validation", path) for _ in range(ROUNDS - 1)]
        compared = measured("comparison", path)
    for one in (*ours, loop, compared):
        if (one["rows"], one["errors"]) != (options.rows, 0):
            raise SystemExit(f"a side did not see {options.rows} good rows: {one}")
    best = min(ours, key=lambda one: one["seconds"])
    seconds = ", ".join(f"{one['seconds']:.1f}" for one in ours)
    print(f"{'':24}{'seconds':>10}{'CPU s':>10}{'rows/s':>12}{'peak MiB':>10}")
    beside = f"beside {HELD_OUT:,} held out"
    for name, one in (("plain loop", loop), ("rl-train validate", best), (beside, compared)):
        speed = one["rows"] / one["seconds"]
        print(
            f"{name:24}{one['seconds']:10.1f}{one['cpu_seconds']:10.1f}{speed:12,.0f}{one['mib']:10.0f}"
        )
    cpu = loop["cpu_seconds"] / best["cpu_seconds"]
    print(f"{loop['seconds'] / best['seconds']:.1f} times faster, {cpu:.1f} times less CPU")
    print(f"runs before and after the loop: {seconds} s")
    print(f"the loop's load_dataset took another {loop['load_seconds']:.1f} s")


if __name__ == "__main__":
    main()
