"""Part `gpu_tests`: the tests that need a GPU, counted; those of whole runs only where Ray and
Prefect are installed."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_suite.notebook import Notebook, Status
from benchmarks.gpu_suite.one_part import Place

ROOT = Path(__file__).parents[2]
FILES = ("tests/train/test_gpu.py", "tests/rollout/test_gpu.py", "tests/e2e/test_gpu.py")
NEEDS = {"tests/e2e/test_gpu.py": ("ray", "prefect", "mlflow")}
RUN = (
    "import sys, pytest; from benchmarks.gpu_suite.older_torch import name_param_groups; "
    "name_param_groups(); sys.exit(pytest.main(sys.argv[1:]))"
)


def run(notebook: Notebook, place: Place) -> None:
    """Run the files one after the other, and note each test that did not pass."""
    if find_spec("pytest") is None:
        notebook.end(Status.SKIPPED, "not installed here: pytest")
        return
    for file in FILES:
        lacking = [name for name in NEEDS.get(file, ()) if find_spec(name) is None]
        if lacking:
            notebook.add(file=file, skipped=f"not installed here: {', '.join(lacking)}")
            continue
        report = place.scratch / "tests.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-c", RUN, "-m", "gpu", file, "-p", "no:cacheprovider"]
        # A version that is not ours warns of what ours does not.
        command += [f"--junitxml={report}", "-o", "filterwarnings=default"]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if not report.is_file():
            notebook.add(file=file, broken=(ended.stdout + ended.stderr)[-1500:])
            continue
        notebook.add(file=file, **counted(report))


def counted(report: Path) -> dict[str, object]:
    """Return the numbers of tests by outcome, and the names and reasons of those that failed."""
    passed, skipped, failed = 0, [], []
    for case in ET.parse(report).iter("testcase"):
        name = case.get("name", "")
        trouble = [*case.findall("failure"), *case.findall("error")]
        if trouble:
            failed.append(f"{name}: {(trouble[0].get('message') or '')[:300]}")
        elif (skip := case.find("skipped")) is not None:
            skipped.append(skip.get("message") or "")
        else:
            passed += 1
    why = sorted(set(skipped))
    return {"passed": passed, "num_skipped": len(skipped), "why": why, "failed": failed}
