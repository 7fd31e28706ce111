"""Named sets through the whole flow, the choice of the best iteration, and iterations of a run as
models."""

from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient

from rl_core.errors import StorageError
from rl_core.evaluation.runner import read_samples
from rl_core.reporting.report import report_page
from rl_core.reporting.run_record import RunRecord
from rl_core.runs.evaluation import find_candidate
from rl_core.runs.run_folder import RunFolder
from rl_core.runs.versions.iterations import find_iteration
from rl_core.runtime.home import Home
from schemas.receipts import ChoiceReceipt, EvalReceipt, ModelReceipt
from tests.e2e.conftest import train_here, working_in
from tests.e2e.outcomes import run_folder

pytestmark = pytest.mark.slow


def test_sets_are_measured_judged_and_reported_and_any_iteration_is_a_model(
    tiny_recipe: Path, tmp_path: Path, ray_cluster: None, prefect_harness: None
) -> None:
    from flows.rl_evaluate import rl_evaluate

    values = yaml.safe_load(tiny_recipe.read_text())
    held_out = values["data"]["eval"][0]
    values["evaluation"] = {
        **values.get("evaluation", {}),
        "eval_every": 1,
        "scorers": True,
        "pass_mark": 1.0,
        "sets": {
            "some/name": {"data": [{**held_out, "size": 4}], "samples": 4, "temperature": 1.0},
            "greedy": {"data": [{**held_out, "size": 3}], "at_ends_alone": True},
        },
    }
    values["rewards"] = [{"name": "length", "max_length": 2, "buffer": 1, "penalty": 0.5}]
    values["registration"] = {"from": "best", "set": "some/name", "score": "pass@4"}
    values["training"] = {**values["training"], "num_iterations": 2, "keep_last": 2}
    (tmp_path / "sets.yaml").write_text(yaml.safe_dump(values))
    home = tmp_path / "home"
    train_here(tmp_path / "sets.yaml", home)
    folder = RunFolder(run_folder(home))

    final = folder.receipt("evaluate-final", EvalReceipt)
    between = folder.receipt("evaluate-iteration-1", EvalReceipt)
    choice = folder.receipt("choose-iteration", ChoiceReceipt)
    model = folder.receipt("promote-model", ModelReceipt)
    assert final is not None and between is not None and choice is not None and model is not None
    assert list(between.sets) == ["some/name"]
    found = final.sets["some/name"]
    assert (found.num_prompts, found.num_samples) == (4, 4)
    assert {"mean_reward", "avg@4", "pass@2", "pass@4"} <= found.measures.keys()
    assert "accuracy" in final.sets["greedy"].measures
    assert final.scores["length"] == found.measures["length"].value == -0.5, "no reply is short"
    rows = read_samples(found.samples_path)
    assert max(row["reward"] for row in rows) <= 0.5, "the scorer is a part of the reward"
    assert len(rows) == 16
    assert [row["uid"] for row in rows[:4]] == [rows[0]["uid"]] * 4
    assert len({row["response"] for row in rows[:4]}) > 1, "samples of a prompt are drawn anew"
    decided = model.gate.decided_by
    assert decided is not None
    assert (decided.score, decided.after) == ("pass@4", found.measures["pass@4"].value)

    run_id = folder.mlflow_run_id
    assert run_id is not None
    metrics = MlflowClient(f"sqlite:///{home / 'mlflow.db'}").get_run(run_id).data.metrics
    assert metrics["eval/some/name/pass_x40_4"] == pytest.approx(found.measures["pass@4"].value)
    page = report_page(RunRecord(folder), Home(home))
    assert "some/name" in page and str(choice) in page

    name = f"{folder.root.name}@{choice.iteration}"
    with working_in(home):
        again = rl_evaluate(name)
    # The weights of the chosen iteration, exported anew, are those that were judged.
    assert again.eval_digest == final.eval_digest
    assert read_samples(again.samples_path) == read_samples(final.samples_path)
    assert find_candidate(name, Home(home)).iteration is not None
    with pytest.raises(StorageError, match=r"no checkpoint of iteration 7; kept are: 1, 2"):
        find_iteration(f"{folder.root.name}@7", Home(home))
