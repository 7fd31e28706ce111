"""A chain of SFT and GRPO through the flow: what the second stage starts from, what is recorded,
what a closed gate ends, and that a killed chain ends as an undisturbed one."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from mlflow import MlflowClient
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName

from rl_core.errors import ChainStopped
from rl_core.runs.chain.chain_table import stage_rows
from rl_core.runs.chain.chains import load_chain
from rl_core.tracking.lineage import trace
from schemas.receipts import ChainReceipt
from tests.command import answer
from tests.e2e.conftest import Run, working_in
from tests.e2e.outcomes import assert_identical, weights_in
from tests.processes import still_running

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def chain(
    tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Path, tiny_model_dir: Path
) -> Path:
    """SFT of one iteration, then three of GRPO, with the recipe of the first beside the chain."""
    folder = tmp_path_factory.mktemp("chain")
    sft = {
        "name": "lines",
        "domain": "sft",
        "model": {"path": str(tiny_model_dir)},
        "fsdp": {"param_dtype": "float32"},
        "optimizer": {"learning_rate": 0.01},
        "data": {
            "train": [{"log_lines": 16, "seed": 1}],
            "eval": [{"log_lines": 4, "seed": 1, "split": "eval", "env_class": None}],
        },
        "algorithm": {"name": "sft"},
        "training": {"num_iterations": 1, "steps_per_iteration": 4, "prompts_per_step": 4},
        "registration": {"score": "log_prob"},
        "placement": {"threads_per_device": 1},
    }
    (folder / "lines.yaml").write_text(yaml.safe_dump(sft))
    short = {"training": {"steps_per_iteration": 1}}
    stages = [
        {"name": "sft", "recipe": "lines.yaml"},
        {"name": "rl", "recipe": str(tiny_recipe), "overrides": short},
    ]
    path = folder / "tiny-chain.yaml"
    path.write_text(yaml.safe_dump({"name": "tiny", "stages": stages}))
    return path


def run_here(chain: Path, home: Path, *overrides: str) -> ChainReceipt:
    """Run a chain in this process, on the session's server and cluster."""
    from flows.rl_train import rl_train

    with working_in(home):
        receipt = rl_train(str(chain), list(overrides))
        assert isinstance(receipt, ChainReceipt)
        return receipt


@pytest.fixture(scope="module")
def undisturbed_chain(
    chain: Path, ray_cluster: None, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, ChainReceipt]:
    home = tmp_path_factory.mktemp("undisturbed-chain")
    return home, run_here(chain, home)


def test_each_stage_starts_from_the_last_ones_version_and_says_so(
    chain: Path, undisturbed_chain: tuple[Path, ChainReceipt]
) -> None:
    home, receipt = undisturbed_chain
    sft, rl = receipt.stages["sft"], receipt.stages["rl"]
    assert (sft.name, rl.name, sft.promoted) == ("rl-train-tiny-sft", "rl-train-tiny-rl", True)
    uri = f"sqlite:///{home / 'mlflow.db'}"
    found = trace(uri, rl.name, rl.version)
    assert yaml.safe_load(found.recipe)["model"]["path"] == sft.model_path
    (earlier,) = found.ancestors
    assert (earlier.name, earlier.version, earlier.key) == (sft.name, sft.version, "model.path")
    said = answer(home, "lineage", f"models:/{rl.name}/{rl.version}", "--verify")
    assert f"after    {sft.name} v{sft.version}" in said
    tags = MlflowClient(uri).get_run(found.run_id).data.tags
    assert (tags["chain"], tags["chain.stage"]) == ("tiny", "rl")
    assert tags["chain.from"] == f"models:/{sft.name}/{sft.version}"
    first, second = stage_rows(load_chain(str(chain)), receipt.stages)
    assert (first["score"], second["starts from"]) == ("log_prob", "sft")
    assert float(str(first["after"])) > float(str(first["before"]))
    with get_client(sync_client=True) as client:
        names = FlowRunFilterName(any_=["rl-train tiny sft", "rl-train tiny rl"])
        runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=names))
    assert all(one.parent_task_run_id and one.state_name == "Completed" for one in runs)
    assert {one.name for one in runs} == set(names.any_ or ())


@pytest.mark.long
def test_a_stage_that_fails_its_gate_ends_the_chain_until_a_person_promotes_it(
    chain: Path, ray_cluster: None, tmp_path: Path
) -> None:
    overrides = ("stages.sft.registration.margin=100", "stages.rl.training.num_iterations=1")
    with pytest.raises(ChainStopped) as caught:
        run_here(chain, tmp_path, *overrides)
    said = str(caught.value)
    assert said.startswith("tiny-chain.yaml: stage sft (")
    assert "did not pass its gate (margin 100): log_prob " in said
    assert "rl was not run" in said and "rl-train promote rl-train-tiny-sft 1" in said
    assert [one.name.startswith("tiny-sft-") for one in tmp_path.glob("runs/*")] == [True]
    answer(tmp_path, "promote", "rl-train-tiny-sft", "1")
    assert set(run_here(chain, tmp_path, *overrides).stages) == {"sft", "rl"}


@pytest.mark.long
def test_a_chain_killed_in_its_second_stage_goes_on_there_bit_identical(
    start: Callable[..., Run],
    chain: Path,
    undisturbed_chain: tuple[Path, ChainReceipt],
    tmp_path: Path,
) -> None:
    run = start(chain, tmp_path)
    run.wait_for("stage rl (2 of 2)")
    run.wait_for("train-iteration 2: complete")
    assert not still_running(run.kill())
    (sft,) = tmp_path.glob("runs/tiny-sft-*")
    written = (sft / "receipts" / "promote-model.json").stat().st_mtime_ns
    receipt = run_here(chain, tmp_path)
    assert (sft / "receipts" / "promote-model.json").stat().st_mtime_ns == written
    assert len(list(tmp_path.glob("runs/*"))) == 2
    with get_client(sync_client=True) as client:
        name = FlowRunFilterName(any_=[f"rl-train {chain}"])
        ends = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=name))
    assert "Running" not in {one.state_name for one in ends}, "the killed chain is shown for ever"
    _, expected = undisturbed_chain
    for name, stage in receipt.stages.items():
        assert_identical(
            weights_in(Path(stage.model_path)), weights_in(Path(expected.stages[name].model_path))
        )
