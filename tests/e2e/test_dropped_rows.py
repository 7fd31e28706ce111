"""Bad rows are dropped where a recipe says so: the others are trained on in the order of the user's
own source, and what was dropped is counted in MLflow and in the report."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from rl_core.data.store.prompt_rows import load_prepared
from rl_core.reporting.report import write_report
from rl_core.reporting.run_record import RunRecord
from rl_core.runs.run_folder import RunFolder
from rl_core.runtime.home import Home
from tests.data.damage import asked, write_rows
from tests.e2e.conftest import train_here
from tests.e2e.outcomes import logged_metrics, run_folder


class Backwards:
    """A user's own source: the rows from the last to the first."""

    drawn: ClassVar[list[str]] = []
    """What was asked, in order."""

    def __init__(self, items: Any, batch_size: int, seed: int) -> None:
        self.items, self.batch_size, self.place = items, batch_size, 0

    def next_batch(self) -> list[Any]:
        places = range(self.place, self.place + self.batch_size)
        self.place += self.batch_size
        batch = [self.items[-1 - place % len(self.items)] for place in places]
        self.drawn.extend(item["prompt"][0]["content"] for item in batch)
        return batch

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


@pytest.mark.slow
def test_good_rows_are_trained_on_in_the_sources_order_and_bad_ones_counted(
    tiny_recipe: Path, tmp_path: Path, ray_cluster: None
) -> None:
    rows = [asked("gsm8k", str(n), f"{n}+0?") for n in range(8)]
    rows[2]["env_class"], rows[5]["reward_spec"] = "gsm9k", {"ground_truth": "five"}
    train = write_rows(tmp_path / "train.jsonl", rows)
    held_out = write_rows(tmp_path / "eval.jsonl", [asked("gsm8k", "9", "9+0?")])
    home = tmp_path / "home"
    Backwards.drawn.clear()
    train_here(
        tiny_recipe,
        home,
        f"data.train=[{train}]",
        f"data.eval=[{held_out}]",
        "data.on_invalid=drop",
        "data.max_bad_fraction=0.5",
        f"data.source={{target: '{__name__}:Backwards'}}",
        "environments={}",
        "training.num_iterations=1",
        "training.steps_per_iteration=2",
        "training.prompts_per_step=4",
    )
    good = [f"{n}+0?" for n in range(8) if n not in (2, 5)]
    assert Backwards.drawn[:8] == [*reversed(good), *reversed(good)][:8]
    (prepared,) = home.glob("cache/*/train.parquet")
    assert [item["prompt"][0]["content"] for item in load_prepared(prepared)] == good
    metrics = logged_metrics(home)
    assert metrics["validation/rows"] == [9.0] and metrics["validation/accepted"] == [7.0]
    rejected = {name: said for name, said in metrics.items() if "validation/rejected/" in name}
    assert sum(said[0] for said in rejected.values()) == 2
    page = write_report(
        RunRecord(RunFolder(run_folder(home))), Home(home), tmp_path / "report.html"
    )
    assert "7 of 9 rows accepted" in page.read_text(encoding="utf-8")
