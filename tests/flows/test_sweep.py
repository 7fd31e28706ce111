"""Sweeps: which runs there are, and that they are compared on one page."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from prefect.logging import disable_run_logger

from flows.sweep import flow
from flows.sweep.grid import combinations, split_values, varied
from rl_core.errors import NoSignal, RecipeError, SweepFailed
from rl_core.runs.recipes import load_recipe
from rl_core.runs.session import close_sessions
from rl_core.runtime.home import Home
from schemas.receipts import ModelReceipt
from tests.made_runs import make_run, recipe_of


def test_the_last_key_changes_fastest():
    assert combinations(["algorithm.name=grpo,rloo", "seed=1,2"]) == [
        ["algorithm.name=grpo", "seed=1"],
        ["algorithm.name=grpo", "seed=2"],
        ["algorithm.name=rloo", "seed=1"],
        ["algorithm.name=rloo", "seed=2"],
    ]


def test_commas_inside_brackets_and_quotes_separate_nothing():
    assert split_values("[a,b],{c: 1, d: 2},'e,f'") == ["[a,b]", "{c: 1, d: 2}", "'e,f'"]


def test_runs_are_told_apart_by_what_differs():
    assert varied(combinations(["lora.rank=8", "seed=1,2"])) == ["seed=1", "seed=2"]


def test_a_key_is_there_once():
    with pytest.raises(RecipeError, match="seed is there twice"):
        combinations(["seed=1,2", "lora.rank=8", "seed=3"])


@pytest.mark.parametrize("text", ["seed", "=1", "seed=1,", "seed=1,,2", "seed=1,2,1"])
def test_an_assignment_that_cannot_be_read_is_named(text: str):
    with pytest.raises(RecipeError, match=repr(text).replace("'", ".")):
        combinations([text])


def test_a_sweep_is_bounded():
    with pytest.raises(RecipeError, match="these are 100 runs; a sweep has at most 64"):
        combinations([f"seed={','.join(map(str, range(100)))}"])


@pytest.mark.slow
def test_a_run_that_ends_in_an_error_does_not_end_the_others(
    tmp_path: Path, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, prefect_harness: None
):
    """The sweep itself ends in an error that names the run; the page has the two others, and the
    models a name of their own."""
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, value in Home.default().environment().items():  # the flow exports it
        monkeypatch.setenv(name, value)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(recipe_of("mine", tmp_path, tiny_model_dir)))
    trained: dict[int, str] = {}

    def train(recipe: str, overrides: Sequence[str], profile: str | None) -> ModelReceipt:
        settings = load_recipe(recipe, overrides, profile)
        assert settings.name == "mine-sweep"
        if settings.seed == 2:
            raise NoSignal("nothing to learn from")
        right = [1.0] * settings.seed + [0.0] * (4 - settings.seed)
        with disable_run_logger():
            made = make_run(settings.model_dump(mode="json"), [0.0] * 4, right)
        trained[settings.seed] = made.folder.root.name
        return ModelReceipt.model_construct(model_path=str(made.folder.export))

    monkeypatch.setattr(flow, "rl_train", train)
    with pytest.raises(SweepFailed, match="1 of 3 runs failed, seed=2: nothing to") as caught:
        flow.rl_sweep(str(path), ["seed=1,2,3"])
    close_sessions()
    page = Path(str(caught.value).split("; ")[-1].split(" compares")[0]).read_text()
    assert sorted(trained) == [1, 3] and all(name in page for name in trained.values())
    assert "+0.500" in page, "the change from the first run"
    with pytest.raises(SweepFailed, match="no run of the sweep ended well; as it is: nothing"):
        flow.rl_sweep(str(path), ["seed=2"])
