"""Two runs of one model: the second has to beat the champion on its own held-out rows, whose
weights are evaluated.

Whatever came of it, an older version can be made champion again.
"""

from dataclasses import dataclass
from pathlib import Path

import pytest

from rl_core.evaluation.runner import read_samples
from rl_core.tracking.model_versions import promotions
from schemas.receipts import GateReceipt
from tests.command import answer
from tests.e2e.conftest import train_here
from tests.e2e.outcomes import assert_identical, weights_in

pytestmark = pytest.mark.slow
SHORT = ("training.num_iterations=1", "training.steps_per_iteration=1")
NAME = "rl-train-tiny"


@dataclass(frozen=True)
class Retrained:
    """A home with two runs: the first one's version was champion when the second was trained."""

    home: Path
    first: Path
    second: Path
    """Folders of the runs."""


@pytest.fixture(scope="module")
def retrained(
    tiny_recipe: Path, ray_cluster: None, tmp_path_factory: pytest.TempPathFactory
) -> Retrained:
    home = tmp_path_factory.mktemp("retrained")
    train_here(tiny_recipe, home, *SHORT)
    (first,) = home.glob("runs/*")
    answer(home, "promote", NAME, "1", "--reason", "for the test")
    train_here(tiny_recipe, home, *SHORT, "evaluation.max_new_tokens=11")
    (second,) = set(home.glob("runs/*")) - {first}
    return Retrained(home, first, second)


def test_the_champion_is_evaluated_where_its_record_does_not_count(retrained: Retrained) -> None:
    measured = retrained.second / "champion-v1" / "samples" / "evaluate-champion.jsonl"
    gate = GateReceipt.model_validate_json(
        (retrained.second / "receipts" / "judge-model.json").read_text()
    )
    assert gate.compared_with == "champion v1"
    rows = read_samples(measured)
    assert gate.decided_by is not None
    assert gate.decided_by.before == sum(row["reward"] >= 1 for row in rows) / len(rows)
    assert max(row["num_tokens"] for row in rows) <= 11
    assert "champion v1" in (retrained.second / "report.html").read_text()


def test_after_a_rollback_the_older_version_is_what_champion_means(
    retrained: Retrained, tmp_path: Path
) -> None:
    home = retrained.home
    answer(home, "promote", NAME, "2")
    said = answer(home, "promote", NAME, "1", "--reason", "v2 is rude")
    assert said.startswith(f"{NAME} v1 is champion (it was v2); ") and said.endswith(
        ": v2 is rude\n"
    )
    last = promotions(f"sqlite:///{home / 'mlflow.db'}", NAME)[-1]
    assert (last.version, last.over, last.reason) == (1, 2, "v2 is rude")
    answer(home, "export", f"models:/{NAME}@champion", "--to", str(tmp_path / "exported"))
    assert_identical(weights_in(tmp_path / "exported"), weights_in(retrained.first / "model"))
