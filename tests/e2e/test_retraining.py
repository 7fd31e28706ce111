"""Two runs of one model: the second has to beat the champion on its own held-out rows, whose weights are evaluated."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_core.evaluation.runner import read_samples
from schemas.receipts import GateReceipt
from tests.e2e.conftest import DEADLINE_S, REPOSITORY, Run

pytestmark = pytest.mark.slow


def test_the_champion_is_evaluated_where_its_record_does_not_count(
    start: Callable[..., Run], tiny_recipe: Path, tmp_path: Path
) -> None:
    short = ("training.num_iterations=1", "training.steps_per_iteration=1")
    assert start(tiny_recipe, tmp_path, *short).finish() == 0
    promote = [sys.executable, "-m", "flows.cli", "promote", "rl-train-tiny", "1", "--reason", "for the test"]
    environment = os.environ | {"RL_TRAIN_HOME": str(tmp_path)}
    subprocess.run(promote, cwd=REPOSITORY, env=environment, check=True, timeout=DEADLINE_S)

    second = start(tiny_recipe, tmp_path, *short, "evaluation.max_new_tokens=11")
    assert second.finish() == 0, second.output
    (measured,) = tmp_path.glob("runs/*/champion-v1/samples/evaluate-champion.jsonl")
    run = measured.parents[2]
    gate = GateReceipt.model_validate_json((run / "receipts" / "judge-model.json").read_text())
    assert gate.compared_with == "champion v1"
    rows = read_samples(measured)
    assert gate.decided_by is not None
    assert gate.decided_by.before == sum(row["reward"] >= 1 for row in rows) / len(rows)
    assert max(row["num_tokens"] for row in rows) <= 11
    assert "champion v1" in (run / "report.html").read_text()
