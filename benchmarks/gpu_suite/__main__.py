"""`make gpu-suite`: run every part, each in a process of its own, within nine minutes.

    python -m benchmarks.gpu_suite [--out gpu-suite] [--dry] [--only PART ...]

Runs from a plain tree, without network and without `.venv`: by any Python that has torch, and with
the wheels that `python -m benchmarks.gpu_suite.wheels` put into `.whl`. A part that lacks a package
says so in its result and the next one begins. `--dry` takes tiny shapes on the processor, to try
the suite itself. Each part's result is a JSON file of the folder; `make gpu-report` makes
docs/gpu.md of them.

Only the standard library is imported here, since anything else may be missing.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu_suite.notebook import Notebook, Status
from benchmarks.gpu_suite.parts import PARTS, TOTAL_S, Part
from benchmarks.gpu_suite.wheels import unpacked

ROOT = Path(__file__).parents[2]
TAIL = 3000
"""Last characters of a part's output that are kept where it ended badly."""


def main() -> None:
    """Run the parts and print how each ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-suite"), help="folder of the results")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the processor")
    parser.add_argument("--only", nargs="+", choices=[part.name for part in PARTS], default=[])
    args = parser.parse_args()
    began, spare = time.monotonic(), 0.0
    with tempfile.TemporaryDirectory(prefix="gpu-suite-") as scratch:
        environment = environment_of(Path(scratch))
        for part in PARTS:
            if args.only and part.name not in args.only:
                continue
            left = TOTAL_S - (time.monotonic() - began)
            limit = min(part.seconds + spare, left)
            started = time.monotonic()
            said = run(part, args.out.resolve(), Path(scratch), environment, limit, args.dry)
            spare += part.seconds - (time.monotonic() - started)
            print(f"{part.name:10} {said}", flush=True)
    print(f"{args.out}: {time.monotonic() - began:.0f} s; make gpu-report writes docs/gpu.md")


def environment_of(scratch: Path) -> dict[str, str]:
    """Return the environment of the parts: this tree first, then packages out of `.whl`."""
    paths = [str(ROOT)]
    site = unpacked(ROOT / ".whl", scratch / "site")
    if site is not None:
        paths.append(str(site))
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    inherited = {key: os.environ[key] for key in os.environ if key != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {
        "PYTHONPATH": os.pathsep.join(paths),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Compiled once for all parts, and outside the tree.
        "PYTHONPYCACHEPREFIX": str(scratch / "compiled"),
    }


def run(
    part: Part,
    out: Path,
    scratch: Path,
    environment: dict[str, str],
    limit: float,
    dry: bool,
) -> str:
    """Run one part until it ends or its time is up. Returns: how it ended, in a line."""
    notebook = Notebook(out, part, dry)
    if limit < 5:
        notebook.end(Status.CUT, "the suite's nine minutes were over")
        return notebook.reason
    notebook.write()
    log = scratch / f"{part.name}.log"
    command = [sys.executable, "-m", "benchmarks.gpu_suite.one_part", part.name]
    command += ["--out", str(out), "--scratch", str(scratch), "--seconds", f"{limit:.0f}"]
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, *(["--dry"] if dry else [])],
            cwd=ROOT,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            return _ended(notebook, Status.CUT, f"its {limit:.0f} s were over")
        finally:
            _end_group(process)
    found = json.loads(notebook.path.read_text(encoding="utf-8"))
    if found["status"] != Status.RUNNING:
        return f"{found['status']} in {found['seconds']:.0f} s {found['reason'][:160]}"
    tail = log.read_text(errors="replace")[-TAIL:]
    return _ended(notebook, Status.FAILED, f"ended with status {process.returncode}: {tail}")


def _ended(notebook: Notebook, status: Status, reason: str) -> str:
    """Put an end into a part's file that the part itself could not write."""
    notebook.entries = json.loads(notebook.path.read_text(encoding="utf-8"))["entries"]
    notebook.end(status, reason)
    return f"{status}: {reason[-160:]}"


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a part and what it started, which is the process group that it leads."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # all of it has ended
    process.wait()


if __name__ == "__main__":
    main()
