"""A run whose storage is an object store is whole there, and goes on from there on a machine that
never saw it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3fs import S3FileSystem

from rl_core.errors import StorageError, Unreachable
from rl_core.runs.checkpoints.place import kept_names, open_folder
from rl_core.runs.recipes import load_recipe
from rl_core.runs.run_folder import RunFolder
from rl_core.runtime.home import Home
from rl_core.runtime.storage import RemoteFolder, landing, parse_storage
from schemas.receipts import IterationReceipt
from tests.object_store import ObjectStore, object_store

KEPT = 99


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as running:
        yield running


@pytest.fixture
def store(server: ObjectStore, monkeypatch: pytest.MonkeyPatch, request) -> RemoteFolder:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    S3FileSystem.clear_instance_cache()  # those of other servers
    return RemoteFolder(f"s3://bucket/{request.node.name}")


def publish(folder: RunFolder, iteration: int, keep_last: int = KEPT) -> None:
    receipt = IterationReceipt(
        iteration=iteration, first_step=1, last_step=2, checkpoint="there", metrics={"loss": 1.0}
    )
    folder.save_steps(iteration, [{"step": 1.0}])
    folder.save_receipt(f"iteration-{iteration:04d}", receipt)
    with folder.publish_checkpoint(iteration, {"step": 10 * iteration}, keep_last) as building:
        (building / "policy").write("weights.bin", b"weights")


def test_a_machine_with_an_empty_home_finds_the_run(store: RemoteFolder, tmp_path: Path):
    first = RunFolder(tmp_path / "a" / "run", store)
    first.create("name: tiny\n")
    first.remember_tracking("key", "id", "prepared")
    publish(first, 1)
    publish(first, 2, keep_last=1)
    other = RunFolder(tmp_path / "b" / "run", store)
    other.fetch()
    said = other.create("name: tiny\n")
    assert said is not None and "took this run at" in said
    assert other.complete_iterations() == [2]
    assert other.trainer_state(2) == {"step": 20}
    assert other.mlflow_run_id == "id"
    assert other.receipt("iteration-0002", IterationReceipt) is not None
    assert other.history() == [{"step": 1.0}, {"step": 1.0}]
    assert RunFolder(tmp_path / "b" / "run").store == store, "any command finds the store"
    assert not (tmp_path / "b" / "run" / "checkpoints" / "iteration-0002").exists()


def test_what_fails_or_has_no_sentinel_does_not_count(store: RemoteFolder, tmp_path: Path):
    folder = RunFolder(tmp_path / "run", store)
    folder.create("name: tiny\n")
    publish(folder, 1)
    with pytest.raises(KeyError), folder.publish_checkpoint(2, {"step": 20}, KEPT) as building:
        building.write("half.bin", b"half")
        assert folder.last_complete() == 1
        raise KeyError
    (store / "checkpoints" / "iteration-0003.dead").write("half.bin", b"half")
    assert folder.complete_iterations() == [1]
    publish(folder, 3)
    names = {path.split("/")[0] for path in (store / "checkpoints").objects()}
    assert "iteration-0003.dead" not in names, "earlier attempts go with the next"
    assert folder.complete_iterations() == [1, 3]


def test_a_driver_that_another_one_replaced_stores_nothing_more(
    store: RemoteFolder, tmp_path: Path
):
    first, second = (RunFolder(tmp_path / name / "run", store) for name in "ab")
    first.create("name: tiny\n")
    publish(first, 1)
    with (
        pytest.raises(StorageError, match=r"took this run at .* nothing more is stored"),
        first.publish_checkpoint(2, {"step": 20}, KEPT) as building,
    ):
        building.write("rank-0.pt", b"of the first")
        building.write("rank-1.pt", b"of the first")
        second.fetch()
        second.create("name: tiny\n")
        publish(second, 2)  # which removes what others wrote of that iteration
    assert second.complete_iterations() == [1, 2] and second.damage(2) is None
    assert {path.split("/")[0] for path in (store / "checkpoints").objects()} == {
        second.checkpoint(iteration).name for iteration in (1, 2)
    }
    with pytest.raises(StorageError, match="took this run at"):
        publish(first, 3)
    assert first.create("name: tiny\n") is not None, "the same command has it again"
    publish(first, 3)


def test_what_is_left_of_a_run_that_was_started_anew_elsewhere_does_not_count(
    store: RemoteFolder, tmp_path: Path
):
    old, new = (RunFolder(tmp_path / name / "run", store) for name in "ab")
    old.create("name: tiny\n")
    old.remember_tracking("key", "old", "prepared")
    publish(old, 1)
    old.export.mkdir()
    new.fetch()
    assert new.receipt("iteration-0001", IterationReceipt) is not None, "a registered one is kept"
    new.create("name: tiny\n")
    new.remember_tracking("key", "of another MLflow", "prepared")
    old.fetch()
    assert old.export.is_dir(), "it went on elsewhere"
    new.discard()
    new.create("name: tiny\n")
    new.remember_tracking("key", "new", "prepared")
    old.fetch()
    assert old.mlflow_run_id == "new" and not old.export.exists()
    assert old.receipt("iteration-0001", IterationReceipt) is None


def test_a_changed_or_missing_object_is_damage(store: RemoteFolder, tmp_path: Path):
    folder = RunFolder(tmp_path / "run", store)
    folder.create("name: tiny\n")
    for iteration in (1, 2, 3):
        publish(folder, iteration)
    assert folder.damage(3) is None
    (folder.checkpoint(3) / "policy").write("weights.bin", b"weighs!")
    (folder.checkpoint(2) / "policy").remove("weights.bin")
    said = folder.set_damaged_aside()
    assert "has changed" in said[0] and "is missing" in said[1]
    assert folder.complete_iterations() == [1]


def test_discarding_a_run_empties_its_store(store: RemoteFolder, tmp_path: Path):
    folder = RunFolder(tmp_path / "run", store)
    folder.create("name: tiny\n")
    publish(folder, 1)
    folder.discard()
    assert store.objects() == {} and folder.complete_iterations() == []


def test_a_model_lands_in_the_store_whole_or_not(store: RemoteFolder):
    with landing(f"{store}/model") as out:
        (out / "deep").mkdir(parents=True)
        (out / "deep" / "a.txt").write_text("a")
    assert list((store / "model").objects()) == ["deep/a.txt"]
    with pytest.raises(KeyError), landing(f"{store}/other") as out:
        out.mkdir()
        (out / "a.txt").write_text("a")
        raise KeyError
    assert (store / "other").objects() == {}


def test_a_store_that_refuses_and_one_that_is_away(
    store: RemoteFolder, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(StorageError, match="no such file there"):
        store.read("nothing.txt")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    S3FileSystem.clear_instance_cache()
    with pytest.raises(Unreachable, match="cannot be reached"):
        (RemoteFolder(f"{store}-away")).write("a.txt", b"a")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("s3://", "names no bucket"),
        ("ftp://host/runs", "no place that runs can be kept in"),
        ("s3:/bucket/runs", "no place that runs can be kept in"),
        ("runs", "a relative path"),
    ],
)
def test_a_place_of_another_kind_is_refused(text: str, said: str):
    with pytest.raises(StorageError, match=f"placement.storage: {text}.*{said}"):
        parse_storage(text, "placement.storage")


@pytest.mark.parametrize("text", ["s3://bucket/home", "S3:/bucket", "gs://bucket"])
def test_a_home_in_a_store_is_refused_and_makes_no_folder(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_TRAIN_HOME", text)
    with pytest.raises(StorageError, match=r"RL_TRAIN_HOME.*placement\.storage"):
        Home.default()
    assert list(tmp_path.iterdir()) == []


def test_a_shared_folder_holds_the_run_and_the_home_links_to_it(tmp_path: Path):
    home, shared = Home(tmp_path / "home"), tmp_path / "shared"
    recipe = load_recipe("smoke/text", [f"placement.storage={shared}"])
    folder = open_folder("text-1", recipe, home)
    folder.create("name: tiny\n")
    assert folder.root == shared / "text-1"
    assert (home.runs / "text-1" / "recipe.yaml").is_file()
    open_folder("text-1.2", recipe, home)
    assert kept_names(recipe, "text-1", home) == ["text-1.2"]
    plain = load_recipe("smoke/text")
    assert open_folder("text-1", plain, home).root == shared / "text-1", "the link says where"


@pytest.mark.slow
def test_a_training_goes_on_from_its_store_in_an_empty_home(
    server: ObjectStore, tiny_model_dir: Path, tmp_path: Path
):
    done = subprocess.run(
        [sys.executable, "-m", "tests.runs.stored_run", str(tmp_path), str(tiny_model_dir)],
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "whole"
