"""Prepared data as versions in MLflow, found again by reference."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from rl_core.builtin.data.make_fixture import make_fixture
from rl_core.data.stages.run import load_stage, prepare_stage
from rl_core.errors import DataError
from rl_core.runtime.home import Home
from rl_core.tracking.artifacts import register_prepared, resolve, versions, with_artifacts
from schemas.receipts import PrepReceipt

Prepare = Callable[..., PrepReceipt]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for the module: the first tables of an MLflow database take seconds."""
    return tmp_path_factory.mktemp("artifacts")


@pytest.fixture(scope="module")
def uri(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


@pytest.fixture(scope="module")
def prepare(folder: Path) -> Prepare:
    raw = make_fixture(folder / "raw")

    def run(name: str, *overrides: str) -> PrepReceipt:
        stage = load_stage(name, overrides, input_dir=raw[name], output_dir=folder / "out" / name)
        return prepare_stage(stage, home=Home(folder / "home"))

    return run


def register(uri: str, folder: Path, receipt: PrepReceipt):
    return register_prepared(uri, receipt, artifact_location=folder / "mlflow-artifacts")


@pytest.mark.parametrize(
    ("stage", "name", "path"),
    [
        ("mpo", "omni3/rl/mpo/data", "mpo/MMPR-v1.2/meta_public.json"),
        ("text", "omni3/rl/text/data", "text/manifest.json"),
        ("vision", "omni3/rl/vision/data", "vision"),
        ("diffusion", "omni3/rl/diffusion/data", "diffusion/prompts.jsonl"),
    ],
)
def test_each_stage_has_the_documented_artifact(
    stage: str, name: str, path: str, prepare: Prepare, uri: str, folder: Path
) -> None:
    receipt = prepare(stage)
    made = register(uri, folder, receipt)
    assert (made.name, made.path) == (name, folder / "out" / path)
    assert resolve(uri, f"art://{name}@latest") == resolve(uri, f"art://{name}") == made
    assert (
        resolve(uri, f"art://{name}@{receipt.run_hash[:12]}")
        == resolve(uri, f"art://{name}@v{made.version}")
        == made
    )


def test_a_version_holds_inputs_metadata_and_the_small_files(
    prepare: Prepare, uri: str, folder: Path
) -> None:
    receipt = prepare("vision", "preview_rows=4")
    made = register(uri, folder, receipt)
    client = MlflowClient(tracking_uri=uri)
    run = client.get_run(made.run_id)
    inputs = {
        entry.dataset.name: {tag.key: tag.value for tag in entry.tags}
        for entry in run.inputs.dataset_inputs
    }
    assert {name: tags["sha256"] for name, tags in inputs.items()} == {
        f"raw/{Path(source.path).name}": source.sha256 for source in receipt.sources
    }
    below = (
        folder / "mlflow-artifacts" / made.run_id / "artifacts" / "omni3" / "rl" / "vision" / "data"
    )
    metadata = json.loads((below / "metadata.json").read_text())
    assert (metadata["run_hash"], metadata["row_stats"]) == (
        receipt.run_hash,
        {"total": 24, "kept": 24},
    )
    assert metadata["elapsed_sec"] == receipt.elapsed_sec > 0
    assert PrepReceipt.model_validate_json((below / "receipt.json").read_text()) == receipt
    assert (below / "prepare_mmpr_tiny_for_vision_rl_summary.json").is_file()
    assert run.data.metrics["rows/kept"] == 24


def test_a_version_leads_to_the_dataset_it_was_made_of(
    prepare: Prepare, uri: str, folder: Path
) -> None:
    made = register(uri, folder, prepare("vision", "preview_rows=7"))
    run = MlflowClient(tracking_uri=uri).get_run(made.run_id)
    assert run.data.params["source_uri"] == "hf://OpenGVLab/MMPR-Tiny"
    assert "revision" in run.data.params
    assert {entry.dataset.name for entry in run.inputs.dataset_inputs} == {
        "raw/images.zip",
        "raw/mmpr_tiny.parquet",
    }


def test_a_hit_makes_no_new_version_and_a_rebuild_does(
    prepare: Prepare, uri: str, folder: Path
) -> None:
    name = "omni3/rl/vision/data"
    first = register(uri, folder, prepare("vision", "preview_rows=5"))
    again = register(uri, folder, prepare("vision", "preview_rows=5"))
    assert again == first
    second = register(uri, folder, prepare("vision", "preview_rows=6"))
    assert second.version == first.version + 1
    assert versions(uri, name)[:2] == [second, first]
    assert resolve(uri, f"art://{name}@latest") == second
    with pytest.raises(
        DataError, match=rf"\(v{first.version}\): .* holds preparation .*; prepare it again"
    ):
        resolve(uri, f"art://{name}@v{first.version}")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("art://omni3/rl/nothing/data@latest", "no such version; there are none"),
        ("art://", "expected art://<name>@latest"),
        ("omni3/rl/vision/data", "expected art://<name>@latest"),
    ],
)
def test_a_reference_that_leads_nowhere_says_so(reference: str, message: str, uri: str) -> None:
    with pytest.raises(DataError, match=message):
        resolve(uri, reference)


def test_a_recipe_names_prepared_data_by_reference(
    prepare: Prepare, uri: str, folder: Path
) -> None:
    register(uri, folder, prepare("text", "val_fraction=0.3"))
    reference = "art://omni3/rl/text/data@latest"
    values = {
        "name": "x",
        "data": {"train": [reference, "more.jsonl", {"task": "chain_sum"}], "eval": [reference]},
    }
    found = with_artifacts(values, uri)["data"]
    assert [Path(str(path)).parts[-2:] for path in found["train"][:2]] == [
        ("train", "train-00000.jsonl"),
        ("train", "train-00001.jsonl"),
    ]
    assert found["train"][2:] == ["more.jsonl", {"task": "chain_sum"}]
    assert all(Path(path).is_file() and Path(path).parent.name == "val" for path in found["eval"])
    assert values["data"]["eval"] == [reference], "the recipe itself keeps the reference"
