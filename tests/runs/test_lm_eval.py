"""lm-eval on a registered version, where it is installed: results with the version, and one
sentence for every fault."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from rl_core.errors import ModelError, RecipeError
from rl_core.runs.evaluation import Candidate, find_candidate
from rl_core.runs.lm_eval import LmEval, measure, values_of
from rl_core.runs.session import close_sessions
from rl_core.runtime.home import Home
from rl_core.tracking.database import tracking_client
from rl_core.tracking.lineage import trace
from tests.made_runs import make_run, recipe_of, register

TASK = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["3", "4"]
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
PYTHON = os.environ.get("LM_EVAL_PYTHON", sys.executable)


def has_lm_eval() -> bool:
    return subprocess.run([PYTHON, "-c", "import lm_eval"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[Home]:
    """A home with the version `rl-train-measured/1`, whose folder is the tiny model."""
    folder = tmp_path_factory.mktemp("lm-eval")
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(folder / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        register(make_run(recipe_of("measured", folder, tiny_model_dir), [0.0] * 4, [1.0] * 4))
        home = Home.default()
        model = Path(trace(home.mlflow_uri, "rl-train-measured", 1).model_dir)
        for path in tiny_model_dir.iterdir():
            (model / path.name).write_bytes(path.read_bytes())
        yield home
    close_sessions()


@pytest.mark.slow
@pytest.mark.skipif(not has_lm_eval(), reason="lm-eval is not installed (LM_EVAL_PYTHON names it)")
def test_results_are_kept_with_the_version(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    rows = [{"question": f"{n}+1=", "answer": n % 2} for n in range(6)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sums.yaml").write_text(TASK.format(rows=tmp_path / "rows.jsonl"))
    wanted = LmEval("sums", 4, tmp_path / "tasks", PYTHON)
    values = measure(find_candidate("models:/rl-train-measured/1", home), wanted, home)
    assert 0 <= values["sums/acc"] <= 1
    tags = find_candidate("models:/rl-train-measured/1", home).version.tags
    assert float(tags["lm_eval.sums/acc"]) == pytest.approx(values["sums/acc"], rel=1e-4)
    assert (tags["lm_eval.limit"], tags["lm_eval.version"]) == ("4", wanted.version())
    run = tracking_client(home.mlflow_uri).get_run(tags["lm_eval.run_id"])
    assert run.data.metrics["lm_eval/sums/acc"] == values["sums/acc"]
    with pytest.raises(RecipeError, match="--lm-eval nothing_like_it: lm-eval ended with code"):
        measure(
            find_candidate("models:/rl-train-measured/1", home),
            LmEval("nothing_like_it", 1, None, PYTHON),
            home,
        )


def test_an_interpreter_without_it_is_said_with_the_line_that_installs_it(tmp_path: Path):
    with pytest.raises(RecipeError, match="nowhere cannot be run"):
        LmEval("sums", python=str(tmp_path / "nowhere")).version()
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with pytest.raises(RecipeError, match=r"lm-eval is not installed for .*\[eval\]"):
        LmEval("sums", python=str(bare)).version()


def test_a_folder_that_is_no_model_is_refused(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(LmEval, "version", lambda self: "0")
    with pytest.raises(ModelError, match="lm-eval reads a whole model folder"):
        measure(Candidate("mine", str(tmp_path)), LmEval("sums"), home)


def test_values_are_named_by_task_metric_and_filter():
    found = {"alias": "sums", "acc,none": 0.5, "acc_stderr,none": "N/A", "em,strict": 1, "n": 4}
    assert values_of({"results": {"sums": found}}) == {"sums/acc": 0.5, "sums/em,strict": 1.0}
