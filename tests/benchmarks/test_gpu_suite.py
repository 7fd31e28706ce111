"""The GPU suite, dry: each part leaves a result however it ends, and the page is made of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_suite.notebook import Notebook, Status
from benchmarks.gpu_suite.parts import PARTS, TOTAL_S, part_named
from benchmarks.gpu_suite.report import NOT_RUN, page_of
from benchmarks.gpu_suite.wheels import pinned

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_a_dry_run_measures_a_step_and_says_what_is_missing(tmp_path: Path):
    command = [sys.executable, "-m", "benchmarks.gpu_suite", "--dry", "--out", str(tmp_path)]
    subprocess.run([*command, "--only", "peer", "kernels"], cwd=ROOT, check=True, timeout=300)
    kernels = json.loads((tmp_path / "kernels.json").read_text())
    assert kernels["status"] == "done", kernels["reason"]
    assert [one["phase"] for one in kernels["entries"]] == ["generate", "train"]
    assert all(one["kernels"][0]["ms"] > 0 for one in kernels["entries"])
    peer = json.loads((tmp_path / "peer.json").read_text())
    assert peer["status"] == "done" or "trl" in peer["reason"]
    page = page_of(tmp_path)
    for part in PARTS:
        section = page.split(f"## {part.title}\n")[1].split("\n## ")[0]
        assert NOT_RUN in section, "a dry run is no run"
    assert "| generate | `" in page


@pytest.mark.slow
def test_a_part_that_is_cut_keeps_what_it_had_found(tmp_path: Path):
    from benchmarks.gpu_suite.__main__ import environment_of, run

    said = run(part_named("speed"), tmp_path, tmp_path, environment_of(tmp_path), 6.0, dry=True)
    found = json.loads((tmp_path / "speed.json").read_text())
    assert found["status"] == "cut" and said.startswith("cut")
    assert [one["kind"] for one in found["entries"][:1]] in ([], ["rates"])


@pytest.mark.parametrize("status", [Status.DONE, Status.CUT, Status.FAILED])
def test_the_page_says_how_each_part_ended(tmp_path: Path, status: Status):
    notebook = Notebook(tmp_path, part_named("ranks"), is_dry=False)
    notebook.add(way="alone", train=1.25, step=2.5, peak_bytes=3e9)
    notebook.end(status, "why it ended")
    page = page_of(tmp_path)
    assert f"({status} after" in page and "why it ended" in page
    assert "| alone | 1.250 | 2.500 | 3.0 |" in page
    assert page.count(NOT_RUN) == len(PARTS) - 1


def test_the_parts_fit_into_nine_minutes():
    assert sum(part.seconds for part in PARTS) <= TOTAL_S < 9 * 60


def test_what_is_carried_has_the_versions_of_the_constraints():
    versions = [name for name in pinned() if name.startswith("transformers==")]
    assert versions and f"{versions[0]}\n" in (ROOT / "constraints.txt").read_text()
