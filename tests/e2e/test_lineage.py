"""What MLflow holds after a run, and the walk from a model version back to the rows."""

import hashlib
import json
from pathlib import Path

import pytest
from mlflow import MlflowClient

from rl_core.data.store.prompt_rows import load_prepared
from rl_core.tracking.lineage import trace
from schemas.receipts import EvalReceipt, ModelReceipt
from tests.command import rl_train

pytestmark = pytest.mark.slow


def test_a_version_leads_back_to_the_digests_of_its_files(undisturbed: Path) -> None:
    uri = f"sqlite:///{undisturbed / 'mlflow.db'}"
    (folder,) = (undisturbed / "runs").iterdir()
    receipt = ModelReceipt.model_validate_json(
        (folder / "receipts" / "promote-model.json").read_text()
    )
    client = MlflowClient(uri, uri)

    version = client.get_model_version(receipt.name, str(receipt.version))
    run = client.get_run(str(version.run_id))
    assert run.info.status == "FINISHED"
    assert run.data.params["rollout.samples_per_prompt"] == "4"
    assert json.loads((folder / "run.json").read_text())["mlflow_run_id"] == run.info.run_id
    assert run.data.tags["prefect.flow_run_id"]
    history = client.get_metric_history(run.info.run_id, "reward_mean")
    assert [point.step for point in history] == list(range(1, 13))
    wanted = {
        "reward_std", "approx_kl", "entropy", "ratio_mean", "clip_fraction", "grad_norm", "lr", "response_length_mean",  # noqa: E501
        "truncated_share", "zero_std_groups", "delta_log_prob_max", "rollout_tokens_per_second", "seconds/train",  # noqa: E501
        "eval/accuracy", "peak_memory_gb",
    }  # fmt: skip
    assert wanted <= run.data.metrics.keys()
    contexts = [
        tag.value
        for item in run.inputs.dataset_inputs
        for tag in item.tags
        if tag.key == "mlflow.data.context"
    ]
    assert sorted(contexts) == ["evaluation", "evaluation", "training"]
    assert {item.dataset.name for item in run.inputs.dataset_inputs} > {"held-out"}
    names = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {"recipe.yaml", "receipts", "samples", "plots"} <= names

    lineage = trace(uri, receipt.name, receipt.version)
    assert lineage.cache.run_hash == run.data.tags["cache_hash"]
    assert load_prepared(Path(lineage.cache.path) / "train.parquet")
    assert len(lineage.sources) == 2
    for source in lineage.sources:
        assert hashlib.sha256(Path(source.path).read_bytes()).hexdigest() == source.sha256


def test_the_alias_moves_only_when_the_gate_holds(undisturbed: Path) -> None:
    uri = f"sqlite:///{undisturbed / 'mlflow.db'}"
    (folder,) = (undisturbed / "runs").iterdir()
    receipt = ModelReceipt.model_validate_json(
        (folder / "receipts" / "promote-model.json").read_text()
    )
    before, after = (
        EvalReceipt.model_validate_json(
            (folder / "receipts" / f"evaluate-{label}.json").read_text()
        )
        for label in ("baseline", "final")
    )
    decided = receipt.gate.decided_by
    assert decided is not None
    assert (decided.before, decided.after) == (before.accuracy, after.accuracy)
    assert (
        receipt.promoted
        == receipt.gate.passed
        == (after.accuracy > before.accuracy and decided.confidence >= 0.5)
    )
    aliases = MlflowClient(uri, uri).get_registered_model(receipt.name).aliases
    assert aliases == ({"champion": str(receipt.version)} if receipt.promoted else {})


@pytest.mark.long
def test_a_version_trained_again_has_the_same_weights_and_a_changed_source_is_named(
    undisturbed: Path, tmp_path: Path
) -> None:
    verified = rl_train(undisturbed, "lineage", "rl-train-tiny", "1", "--verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert [line.split()[:2] for line in verified.stdout.splitlines() if line.startswith("same")] == [  # noqa: E501
        ["same", "source"], ["same", "source"], ["same", "cache"], ["same", "weights"],
    ]  # fmt: skip

    again = rl_train(
        undisturbed,
        "reproduce",
        "models:/rl-train-tiny/1",
        "--to",
        str(tmp_path / "again"),
        "--run",
    )
    assert again.returncode == 0, again.stdout + again.stderr
    assert "the weights are the same, bit for bit" in again.stdout
    assert (tmp_path / "again" / "home" / "mlflow.db").is_file(), (
        "it was not trained in a home of its own"
    )

    (source, *_) = trace(f"sqlite:///{undisturbed / 'mlflow.db'}", "rl-train-tiny", 1).sources
    path = Path(source.path)
    content = path.read_bytes()
    path.write_bytes(content + b"\n")
    try:
        broken = rl_train(undisturbed, "lineage", "rl-train-tiny", "1", "--verify")
        refused = rl_train(
            undisturbed, "reproduce", "rl-train-tiny", "1", "--to", str(tmp_path / "refused")
        )
    finally:
        path.write_bytes(content)
    assert broken.returncode == 1
    assert f"changed  source   {source.path}" in broken.stdout
    assert refused.returncode == 2
    assert "put the recorded files back first" in refused.stderr
