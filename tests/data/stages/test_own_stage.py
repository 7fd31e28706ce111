"""A stage from a module of the user's takes the place of the project's, by `target` in its
settings."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_core.data.prepare.workers import run_here
from rl_core.data.stages.base import Context
from rl_core.data.stages.run import load_stage, plan_stage, prepare_stage
from rl_core.errors import RecipeError
from rl_core.runtime.home import Home
from tests.parts.examples import write_examples

SETTINGS = "target: 'plays:Plays'\ninput_dir: {folder}/raw\noutput_dir: {folder}/prepared\n"


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_examples(tmp_path, "plays.py")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "lines.txt").write_text("Who's there?\nNay, answer me.\n")
    path = tmp_path / "mine.yaml"
    path.write_text(SETTINGS.format(folder=tmp_path))
    yield path
    sys.modules.pop("plays", None)


def test_a_stage_from_outside_the_project_prepares_and_is_reused(settings: Path, tmp_path: Path):
    home = Home(tmp_path / "home")
    stage = load_stage(str(settings))
    assert plan_stage(stage, home).settings["target"] == "plays:Plays"
    receipt = prepare_stage(stage, context=Context(run=run_here), home=home)
    assert receipt.row_stats == {"total": 2, "kept": 2}
    assert len((tmp_path / "prepared" / "train.jsonl").read_text().splitlines()) == 2
    assert plan_stage(load_stage(str(settings)), home).hit


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stage=vision", "give either stage or target, not both 'vision' and 'plays:Plays'"),
        ("target=plays:Tales", "target 'plays:Tales' cannot be imported"),
        ("target=plays:json", "target: plays:json is not a class"),
        ("target=plays:Built", "target: plays:Built does not derive from"),
        (
            "target=rl_core.data.stages.base:Stage",
            "has no build, no check, no inputs, no code_version, no artifact, no Config, a Stage",
        ),
        ("line=2", "line: unknown key"),
    ],
)
def test_a_stage_that_does_not_fit_is_refused_with_the_reason(
    settings: Path, override: str, said: str
):
    with pytest.raises(RecipeError) as caught:
        load_stage(str(settings), [override])
    assert str(caught.value).startswith("mine.yaml: ")
    assert said in str(caught.value)
