"""`rl-train rollouts` and `rescore`, over a run that stored its rollouts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from flows.cli import app
from rl_core.data.store.prompt_rows import PreparedWriter
from rl_core.runs.run_folder import RunFolder
from tests.runs.rollouts.stored import batch, recipe, store

MARKUP = "[red]so[/red] :train:\x1b[2J #### 3"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run named `stored` of two steps."""
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path))
    folder = RunFolder(tmp_path / "runs" / "stored")
    folder.create(yaml.safe_dump(recipe().model_dump(mode="json")))
    spec = {"reward_spec": {"method": "rule", "ground_truth": "3"}}
    asked = {"prompt": [{"role": "user", "content": "?"}], "env_class": "gsm8k", "env_extras": spec}
    (tmp_path / "prepared").mkdir()
    with PreparedWriter(tmp_path / "prepared" / "train.parquet") as writer:
        writer.write([{"uid": uid, **asked} for uid in "ab"], [1, 1])
    folder.remember_tracking("key", "id", str(tmp_path / "prepared"))
    words = ["so: " + "long " * 400, "none"]
    first = batch(["a", "a"], [MARKUP, "#### 4"], [1.0, 0.0])
    store(folder.root, {1: first, 2: batch(["b", "b"], words, [0.0, -1.5])})
    return folder


def said(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.usefixtures("run")
def test_conversations_are_printed_as_text():
    output = said("rollouts", "stored", "--sort", "reward", "--limit", "1")
    assert "user: asked about a\n" in output
    assert "assistant (reward 1): [red]so[/red] :train:\\x1b[2J #### 3\n" in output
    assert "sample: prompt:a:sample:0\n" in output
    assert "#### 4" not in output


@pytest.mark.usefixtures("run")
def test_long_messages_are_cut_unless_asked_for():
    cut = said("rollouts", "stored", "--step", "2", "--limit", "1")
    assert "... (2004 characters; --full prints all)" in cut
    assert "long " * 400 in said("rollouts", "stored", "--step", "2", "--full")


@pytest.mark.usefixtures("run")
def test_json_has_every_column():
    lines = said("rollouts", "stored", "--json", "--grep", "about B").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["reward"] for row in rows] == [0.0, -1.5]
    assert all(len(row["response_ids"]) == row["num_tokens"] for row in rows)
    assert said("rollouts", "stored", "--group", "nobody") == "no stored row is like this\n"


def test_rewards_are_computed_anew_and_written_beside(run: RunFolder, tmp_path: Path):
    import pyarrow.parquet as pq

    changed = recipe(name="shorter", rewards=[{"name": "length", "max_length": 4, "buffer": 4}])
    path = tmp_path / "shorter.yaml"
    path.write_text(yaml.safe_dump(changed.model_dump(mode="json", exclude_defaults=True)))
    output = said("rescore", "stored", "--recipe", str(path))
    assert "4 rows, 4 with another reward, 0 without; mean -0.125 before, -0.125 now" in output
    rows = pq.read_table(run.rollouts / "rescored-shorter.parquet").to_pylist()
    assert [(row["old"], row["new"]) for row in rows] == [
        (1.0, 0.75),
        (0.0, -0.5),
        (0.0, -0.25),
        (-1.5, -0.5),
    ]
    assert "2 rows" in said("rescore", "stored", "--recipe", str(path), "--step", "1")
    assert (run.rollouts / "rescored-shorter-step-00001.parquet").is_file()
