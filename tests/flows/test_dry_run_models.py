"""A damaged model folder or a dataset that is not here ends `--dry-run` in one sentence."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command import rl_train

Damage = Callable[[Path], None]


def changed(**values: object) -> Damage:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")


def cut(name: str) -> Damage:
    def shorten(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return shorten


def a_page_for_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_text("<html>404</html>" * 9)


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no weights": (without_weights, "config.json but no weights"),
    "pickled weights": (pickled_weights, "pytorch_model.bin is a pickle, which may run code"),
    "half a config": (cut("config.json"), "config.json: no readable JSON"),
    "half a tokenizer": (cut("tokenizer.json"), "tokenizer.json: no readable JSON"),
    "weights of another width": (changed(hidden_size=64), "x 32, vocab_size by hidden_size"),
    "weights of fewer layers": (changed(num_hidden_layers=3), "they have 2 layers"),
    "half the weights": (cut("model.safetensors"), "model.safetensors is cut short"),
    "no weights, in words": (
        a_page_for_weights,
        "model.safetensors is no safetensors file",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_one_sentence(
    damage: str, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.chain_plan import print_plans
    from rl_core.errors import UserError

    apply, said = DAMAGES[damage]
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path / "home"))
    apply(folder)
    with pytest.raises(UserError) as refused:
        print_plans("smoke/text", [f"model.path={folder}"], None)
    assert said in str(refused.value) and str(folder) in str(refused.value)


def test_the_command_says_it_so(tiny_model_dir: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    without_weights(folder)
    done = rl_train(tmp_path / "home", "run", "smoke/text", f"model.path={folder}", "--dry-run")
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1)
    assert done.stderr.startswith(f"error: model.path {folder}: the folder has a config.json but")


@pytest.mark.parametrize("command", [["validate", "openai/gsm8k"], ["--dry-run"]])
def test_a_dataset_that_was_never_fetched_is_one_sentence_offline(
    command: list[str], tmp_path: Path
) -> None:
    if command == ["--dry-run"]:
        command = ["run", "smoke/text", "data.train=[openai/gsm8k]", "--dry-run"]
    done = rl_train(tmp_path / "home", *command, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "hub"))
    last = done.stderr.strip().splitlines()[-1]
    assert "openai/gsm8k:train: no such file, and no such dataset in the local cache; " in last
    assert last.endswith("unset HF_HUB_OFFLINE, or give the path of a file")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
