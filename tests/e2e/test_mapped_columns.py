"""A dataset of openai/gsm8k's shape is validated and trained on from its own columns, also from a
bucket."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.command import rl_train
from tests.e2e.conftest import train_here
from tests.e2e.outcomes import run_folder
from tests.object_store import object_store

MAP = {"prompt": "question", "ground_truth": "answer|after:####"}
ARGUMENTS = [part for target, source in MAP.items() for part in ("--map", f"{target}={source}")]


def gsm8k(path: Path, numbers: range) -> Path:
    """Columns `question` and `answer`, a worked solution that ends in `#### <number>`."""
    rows = [
        {"question": f"What is {n} + {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"}
        for n in numbers
    ]
    pd.DataFrame(rows).to_parquet(path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    return gsm8k(tmp_path / "train.parquet", range(40)), gsm8k(
        tmp_path / "test.parquet", range(40, 48)
    )


def test_validate_reads_its_columns(files: tuple[Path, Path], tmp_path: Path):
    train, test = map(str, files)
    without = rl_train(tmp_path / "home", "validate", train, "--env-class", "gsm8k")
    assert without.returncode == 2
    done = rl_train(
        tmp_path / "home", "validate", train, "--held-out", test, "--env-class", "gsm8k", *ARGUMENTS
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("48 of 48 rows are good")


def test_convert_writes_rows_that_pass(files: tuple[Path, Path], tmp_path: Path):
    train, _ = map(str, files)
    target = tmp_path / "rows.jsonl"
    command = ["data", "convert", train, str(target), "--env-class", "gsm8k", *ARGUMENTS]
    done = rl_train(tmp_path / "home", *command)
    assert (done.returncode, done.stdout) == (0, f"40 prompt rows written to {target}\n")
    assert json.loads(target.read_text().splitlines()[3])["reward_spec"]["ground_truth"] == "6"
    again = rl_train(tmp_path / "home", *command)
    assert again.returncode == 2
    assert "there is such a file already" in again.stderr
    assert rl_train(tmp_path / "home", *command, "--force").returncode == 0
    assert rl_train(tmp_path / "home", "validate", str(target)).returncode == 0


def test_a_mapping_that_cannot_be_read_is_refused(files: tuple[Path, Path], tmp_path: Path):
    done = rl_train(tmp_path / "home", "validate", str(files[0]), "--map", "prompt=question|upper")
    assert done.returncode == 2
    assert done.stderr.startswith("error: --map: map prompt: unknown step 'upper'")


@pytest.mark.slow
def test_a_run_trains_on_its_columns_in_a_bucket(
    files: tuple[Path, Path],
    tiny_recipe: Path,
    tmp_path: Path,
    ray_cluster: None,
    monkeypatch: pytest.MonkeyPatch,
):
    home = tmp_path / "home"
    with object_store() as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        train, test = (store.put(f"gsm8k/{file.name}", file.read_bytes()) for file in files)
        train_here(
            tiny_recipe,
            home,
            f"data.train=[{train}]",
            f"data.eval=[{test}]",
            "data.map={prompt: question, ground_truth: 'answer|after:####'}",
            "data.default_env_class=gsm8k",
            "environments={}",
            "training.num_iterations=1",
            "training.steps_per_iteration=1",
        )
    receipt = json.loads((run_folder(home) / "receipts" / "evaluate-final.json").read_text())
    assert receipt["num_rows"] == 8
    (fetched,) = home.glob("data/remote/s3/bucket/gsm8k/train.parquet/*/train.parquet")
    assert fetched.read_bytes() == files[0].read_bytes()
