"""The commands `rl-train export` and `rl-train push`: what they write, and how they refuse."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import pytest
import torch
from prefect.logging import disable_run_logger

from flows.cli import main
from flows.exit_codes import ExitCode
from rl_core.runs.session import close_sessions
from tests.hub_server import TOKEN, Hub
from tests.made_runs import make_run, recipe_of, register
from tests.models.test_gguf_file import llama

MODEL = "models:/rl-train-shipped/1"
# huggingface_hub 2.4 sends files of LFS so; this can go when it says `content=`.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>':DeprecationWarning")


@dataclass(frozen=True)
class Shipped:
    """A registered version of a whole model, and its run."""

    run: str
    weights: bytes


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shipped]:
    folder = tmp_path_factory.mktemp("shipped")
    model = llama(folder / "model", digits=True)
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(folder / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        made = make_run(recipe_of("shipped", folder, model), [0.0] * 4, [1.0] * 4)
        shutil.copytree(model, made.folder.export, dirs_exist_ok=True)
        weights = (model / "model.safetensors").read_bytes()
        register(made, weights)
        yield Shipped(made.folder.root.name, weights)
    close_sessions()


Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `rl-train` in this process, and returns its exit code and what it said."""

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["rl-train", *map(str, arguments)])
        capsys.readouterr()
        before, path = dict(os.environ), list(sys.path)
        os.environ["COLUMNS"] = "10000"
        try:
            with pytest.raises(SystemExit) as ended:
                main()
        finally:
            os.environ.clear()
            os.environ.update(before)
            sys.path[:] = path
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out + said.err

    return run


def test_a_version_is_written_whole_and_loads(
    shipped: Shipped, command: Command, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    for number, flags in enumerate(([], ["--format", "hf"])):
        out = tmp_path / f"new/{number}"
        code, said = command("export", MODEL, "--to", out, *flags)
        assert code == 0 and f"model.path={out} trains on from there" in said
        assert (out / "model.safetensors").read_bytes() == shipped.weights
        assert {"README.md", "lineage.json"} <= {path.name for path in out.iterdir()}
    ids = torch.arange(4)[None]
    assert AutoModelForCausalLM.from_pretrained(out)(ids).logits.isfinite().all()


@pytest.mark.parametrize(("numbers", "kind"), [(None, "F16"), ("q8_0", "Q8_0")])
def test_a_version_is_written_as_gguf_that_splits_digits(
    shipped: Shipped, command: Command, tmp_path: Path, numbers: str | None, kind: str
) -> None:
    out = tmp_path / "gguf"
    flags = [] if numbers is None else ["--numbers", numbers]
    code, said = command("export", "rl-train-shipped", 1, "--to", out, "--format", "gguf", *flags)
    assert code == 0 and "llama.cpp" in said, said
    assert sorted(path.name for path in out.iterdir()) == [
        "README.md",
        "lineage.json",
        "model.gguf",
    ]
    reader = gguf.GGUFReader(out / "model.gguf")
    assert reader.fields["tokenizer.ggml.pre"].contents() == "smollm"
    assert kind in {tensor.tensor_type.name for tensor in reader.tensors}
    assert [path.name for path in tmp_path.iterdir()] == ["gguf"], "the whole model was left there"


REFUSED = {
    "adapters of a whole model": (
        [MODEL, "--format", "adapter"],
        "rl-train-shipped v1 was registered as hf, not adapter",
    ),
    "numbers without gguf": ([MODEL, "--numbers", "f16"], "--numbers f16 goes with --format gguf"),
    "numbers of another format": (
        [MODEL, "--format", "hf", "--numbers", "bf16"],
        "--numbers bf16 goes with --format gguf",
    ),
    "an unknown format": ([MODEL, "--format", "onnx"], "'hf', 'adapter', 'gguf'"),
    "unknown numbers": ([MODEL, "--format", "gguf", "--numbers", "q2"], "'f16', 'bf16', 'q8_0'"),
    "an unknown version": (["models:/rl-train-shipped/7"], "has no version 7"),
    "no champion": (["models:/rl-train-other@champion"], "has no alias champion"),
    "neither version nor run": (["shipped"], "expected models:/NAME@champion"),
    "an unknown run": (["nowhere@1"], "no run 'nowhere'"),
    "adapters of a full run": (["RUN@1", "--format", "adapter"], "there are no adapters (lora)"),
    "an iteration that is gone": (["RUN@9"], "no checkpoint of iteration 9; kept are: 1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_export_that_cannot_be_is_refused_in_a_sentence(
    shipped: Shipped, command: Command, tmp_path: Path, case: str
) -> None:
    arguments, wanted = REFUSED[case]
    named = [one.replace("RUN", shipped.run) for one in arguments]
    code, said = command("export", *named, "--to", tmp_path / "out")
    assert code == ExitCode.USER_ERROR and "Traceback" not in said
    # The command line's own errors stand in a box, whose lines are short.
    assert wanted in " ".join(said.replace("│", " ").split()), said
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["folder", "file"])
@pytest.mark.parametrize("model", [MODEL, "RUN@1"])
@pytest.mark.parametrize("format", ["hf", "gguf"])
def test_what_is_there_is_not_written_over(
    shipped: Shipped, command: Command, tmp_path: Path, kind: str, model: str, format: str
) -> None:
    out = tmp_path / "out"
    note = out
    if kind == "folder":
        out.mkdir()
        note = out / "note.txt"
    note.write_text("mine")
    named = model.replace("RUN", shipped.run)
    code, said = command("export", named, "--to", out, "--format", format)
    assert code == ExitCode.USER_ERROR and "is not an empty folder; name a new one" in said
    assert note.read_text() == "mine" and [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    try:
        yield server
    finally:
        server.close()


def test_push_takes_its_flags_to_the_hub(shipped: Shipped, command: Command, hub: Hub) -> None:
    code, said = command("push", MODEL, "org/mine", "--private", "--revision", "trial")
    assert code == 0 and "pushed: " in said
    repository = hub.repositories["org/mine"]
    assert repository.private
    assert repository.branches["trial"]["model.safetensors"] == shipped.weights
    assert "model.safetensors" not in repository.branches["main"]
    code, said = command("push", MODEL, "org/mine", "--private", "--revision", "trial")
    assert code == 0 and "org/mine has all of it" in said
    repository.branches["main"] = {"model.safetensors": b"theirs", "config.json": b"{}"}
    code, said = command("push", MODEL, "org/mine")
    assert code == ExitCode.USER_ERROR and "files of another origin" in said
    assert repository.branches["main"]["model.safetensors"] == b"theirs"
    assert command("push", MODEL, "org/mine", "--overwrite")[0] == 0
    assert repository.branches["main"]["model.safetensors"] == shipped.weights


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([MODEL, "alone"], "expected ORGANISATION/NAME"),
        (["models:/rl-train-shipped/7", "org/x"], "has no version 7"),
        (["RUN@9", "org/x"], "no checkpoint of iteration 9"),
        ([MODEL], "Missing argument 'repository'"),
    ],
)
def test_a_push_that_cannot_be_is_refused_in_a_sentence(
    shipped: Shipped, command: Command, hub: Hub, arguments: list[str], wanted: str
) -> None:
    code, said = command("push", *(one.replace("RUN", shipped.run) for one in arguments))
    assert code == ExitCode.USER_ERROR and "Traceback" not in said
    assert wanted in " ".join(said.replace("│", " ").split()), said
    assert not hub.repositories
