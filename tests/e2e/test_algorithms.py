"""A preset with a critic and one with dynamic sampling through the real flow, to the checkpoint."""

import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.e2e.conftest import train_here

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

SHORT = ("training.num_iterations=2", "training.steps_per_iteration=2")
EXPECTED = {
    "ppo": {"critic/value_loss", "critic/grad_norm", "kl_coef", "kl_reward"},
    "dapo": {"dynamic/extra_rollouts", "dynamic/flat_groups", "curriculum/pass_rate"},
}
BLOCKS = {
    "ppo": (
        "algorithm={name: ppo, kl: {coef: 0.05, kind: k1, place: reward, adaptive: {target: "
        "0.01}}}",
    ),
    # A random model writes until it is cut off, and then nothing would be left to train on.
    "dapo": (
        "algorithm={name: dapo, overlong: {filter: false}}",
        "data.curriculum={pass_mark: 0.1}",
    ),
}


@pytest.mark.parametrize("name", [pytest.param("ppo", marks=pytest.mark.long), "dapo"])
def test_a_preset_trains_through_the_flow(name: str, tiny_recipe: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    train_here(tiny_recipe, home, *BLOCKS[name], *SHORT)
    (folder,) = (home / "runs").iterdir()
    uri = f"sqlite:///{home / 'mlflow.db'}"
    client = MlflowClient(uri, uri)
    run_id = json.loads((folder / "run.json").read_text())["mlflow_run_id"]
    assert client.get_run(run_id).data.metrics.keys() >= EXPECTED[name]
    assert [point.step for point in client.get_metric_history(run_id, "loss")] == [1, 2, 3, 4]
    (checkpoint,) = sorted((folder / "checkpoints").glob("*0002"))
    trained = {entry.name for entry in checkpoint.iterdir() if entry.is_dir()}
    assert trained == ({"policy", "critic"} if name == "ppo" else {"policy"})
    state = json.loads((checkpoint / "trainer.json").read_text())
    if name == "ppo":
        assert state["algorithms"]["text"]["kl_coef"] != 0.05
    else:
        assert state["source"]["num_batches"] >= 4 and state["source"]["counts"]
