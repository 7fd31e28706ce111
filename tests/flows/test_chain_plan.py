"""What the command line says of a chain without running it."""

import json
from pathlib import Path

import pytest

from flows.chain_plan import print_plans
from flows.commands.validate import _recipes_of
from rl_core.errors import ModelError, RecipeError
from rl_core.runtime.home import Home


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_model_dir: Path) -> None:
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path))
    monkeypatch.setenv("SMOKE_MODEL", str(tiny_model_dir))


def test_a_dry_run_plans_each_stage(tiny: None, capsys: pytest.CaptureFixture[str]) -> None:
    print_plans("smoke/chain", ["stages.rl.training.num_iterations=7"], None)
    said = capsys.readouterr().out
    sft, _, rl = said.partition("# stage 2 of 2: rl, starts from sft")
    assert "# stage 1 of 2: sft, starts from /" in sft and "cache  miss: " in sft
    assert "path: stage:sft" in rl and "num_iterations: 7" in rl
    assert "cache  known after stage sft" in rl
    assert "GiB a worker" in rl, "the memory is that of the model that the chain begins with"


def test_a_dry_run_names_the_stage_whose_model_cannot_be_trained(
    tiny: None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no-such-model"}))
    with pytest.raises((ModelError, RecipeError), match=r"^chain\.yaml: stage rl \(smoke/text\): "):
        print_plans("smoke/chain", [f"stages.rl.model.path={tmp_path}"], None)


def test_validation_looks_at_the_rows_of_every_stage(tiny: None) -> None:
    found = _recipes_of("smoke/chain", Home.default())
    assert {name: one and one.name for name, one in found.items()} == {
        "sft": "smoke-chain-sft",
        "rl": "smoke-chain-rl",
    }
