"""A push to the hub with the hub's own client, against a server of this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from prefect.logging import disable_run_logger

from rl_core.errors import ModelError, ServiceError, StorageError
from rl_core.runs.session import close_sessions
from rl_core.runs.versions.pushing import push
from rl_core.runtime.home import Home
from tests.hub_server import TOKEN, Hub
from tests.made_runs import make_run, recipe_of, register

MODEL = "models:/rl-train-pushed/1"
# huggingface_hub 2.4 sends files of LFS so; this can go when it says `content=`.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[Home]:
    """A home with one registered version."""
    folder = tmp_path_factory.mktemp("push")
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(folder / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        register(make_run(recipe_of("pushed", folder, tiny_model_dir), [0.0] * 4, [1.0] * 4))
        yield Home.default()
    close_sessions()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    # The stand-in takes large files by LFS.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    try:
        yield server
    finally:
        server.close()


@pytest.mark.slow
def test_a_new_repository_gets_weights_card_and_lineage(home: Home, hub: Hub):
    done = push(MODEL, None, "org/new", home, private=True)
    repository = hub.repositories["org/new"]
    files = repository.branches["main"]
    assert done.is_new and repository.private
    assert files["model.safetensors"] == b"weights"
    assert any("lfs/objects/batch" in one for one in hub.asked)
    lineage = json.loads(files["lineage.json"])
    assert (lineage["name"], lineage["version"]) == ("rl-train-pushed", 1)
    assert str(home.root).encode() not in files["lineage.json"], "folders of this machine"
    assert ModelCard(files["README.md"].decode()).data.pipeline_tag == "text-generation"
    assert repository.messages == ["rl-train-pushed v1: weights, card and lineage"]


def test_the_next_push_of_the_model_leaves_no_old_shard(home: Home, hub: Hub):
    push(MODEL, None, "org/again", home)
    files = hub.repositories["org/again"].branches["main"]
    files["model-00002-of-00002.safetensors"] = b"old"
    assert push(MODEL, None, "org/again", home).is_new
    assert "model-00002-of-00002.safetensors" not in files
    assert files["model.safetensors"] == b"weights" and ".gitattributes" in files


def test_what_others_put_there_is_not_overwritten_in_silence(home: Home, hub: Hub):
    push(MODEL, None, "org/theirs", home)
    files = hub.repositories["org/theirs"].branches["main"]
    for theirs, said in (
        ({"lineage.json": b'{"name": "other"}'}, "holds name 'other', not 'rl-train-pushed'"),
        ({"model.safetensors": b"theirs"}, "files of another origin"),
    ):
        files.clear()
        files |= theirs | {"config.json": b"{}"}
        before = dict(files)
        with pytest.raises(StorageError, match=said):
            push(MODEL, None, "org/theirs", home)
        assert files == before
    push(MODEL, None, "org/theirs", home, overwrite=True)
    assert files["model.safetensors"] == b"weights" and "config.json" not in files


def test_a_branch_is_made_and_main_stays(home: Home, hub: Hub):
    push(MODEL, None, "org/branched", home, revision="v1")
    branches = hub.repositories["org/branched"].branches
    assert "model.safetensors" in branches["v1"] and "model.safetensors" not in branches["main"]


def test_what_is_missing_is_said_in_a_sentence(
    home: Home, hub: Hub, monkeypatch: pytest.MonkeyPatch
):
    with pytest.raises(ModelError, match="expected ORGANISATION/NAME"):
        push(MODEL, None, "alone", home)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ServiceError, match="refuses org/x \\(401\\)"):
        push(MODEL, None, "org/x", home)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ServiceError, match="set HF_TOKEN, or log in"):
        push(MODEL, None, "org/x", home)
    assert not hub.repositories
