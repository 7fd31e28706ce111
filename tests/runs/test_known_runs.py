"""A run is found by every name that leaves no doubt; of several candidates none is chosen."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rl_core.errors import StorageError
from rl_core.runs.known_runs import find_folder, known_runs
from rl_core.runs.versions.iterations import find_iteration
from rl_core.runtime.home import Home

IDS = {
    "text-aa11bb22cc33": "id-of-the-first",
    "text-aa99bb22cc33": "id-of-the-second",
    "text-dpo-0123456789ab": "id-of-dpo",
    "sft-0123456789ab": "id-of-sft",
    "sft-0123456789ab.1": "id-of-sft-anew",
}
"""Runs, the oldest first, and their MLflow run ids."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    for second, (name, run_id) in enumerate(IDS.items()):
        file = tmp_path / "runs" / name / "run.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"mlflow_run_id": run_id}))
        os.utime(file, (second, second))
    return Home(tmp_path)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("text-aa11bb22cc33", "text-aa11bb22cc33"),
        ("text-aa1", "text-aa11bb22cc33"),
        ("text-dpo", "text-dpo-0123456789ab"),
        ("text-dpo-0", "text-dpo-0123456789ab"),
        ("sft-0123456789ab", "sft-0123456789ab"),  # also the start of another
        ("sft-0123456789ab.", "sft-0123456789ab.1"),
        ("id-of-the-second", "text-aa99bb22cc33"),
    ],
)
def test_one_run_is_meant(home: Home, words: str, meant: str) -> None:
    assert find_folder(home, words).root.name == meant


def test_a_run_of_another_recipe_does_not_answer_to_the_start_of_its_name(home: Home) -> None:
    (home.runs / "text-aa11bb22cc33" / "run.json").unlink()
    assert find_folder(home, "text").root.name == "text-aa99bb22cc33"
    (home.runs / "text-aa99bb22cc33" / "run.json").unlink()
    with pytest.raises(StorageError, match=r"no run 'text' .*text-dpo-0123456789ab"):
        find_folder(home, "text")


def test_several_candidates_are_named_the_newest_first(home: Home) -> None:
    said = r"'sft' may be any of 2 runs .*: sft-0123456789ab\.1, sft-0123456789ab; give more"
    with pytest.raises(StorageError, match=said):
        find_folder(home, "sft")
    with pytest.raises(StorageError, match=said):
        find_iteration("sft@1", home)
    assert [*known_runs(home)] == [*reversed(IDS)]


@pytest.mark.parametrize("words", ["", "vision", "id-of", "text-d", "text-", "text-dpo-"])
def test_a_run_that_is_not_there_is_not_guessed(home: Home, words: str) -> None:
    with pytest.raises(StorageError, match=f"no run '{words}' under"):
        find_folder(home, words)
