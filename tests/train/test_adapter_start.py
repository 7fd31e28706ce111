"""A run goes on from exported adapters as if it had not stopped, or from what they give merged."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rl_core.errors import ModelError
from rl_core.models.adapters.exported import ADAPTER_CONFIG, ADAPTER_WEIGHTS, adapter_folder
from rl_core.models.bundle import ModelBundle
from rl_core.models.locate import check_models, locate, locate_start, tokenizer_identity
from rl_core.ranks.rank_info import RankInfo
from rl_core.runs.evaluation import find_candidate
from rl_core.runs.recipes import load_recipe, parse_recipe
from rl_core.runtime.home import Home
from rl_core.train.weights.ema import local_part
from schemas.recipe import EmaLoraConfig, ExportKind, LoraConfig, ModelConfig
from tests.train.jobs import Setup, batch, log_probs, make_backend, make_both, make_stack
from tests.train.jobs import train_steps as train
from tests.train.ranks import Ranks

ADAPTER = LoraConfig(rank=4, alpha=8, export=ExportKind.ADAPTER)


def goes_on(rank_info: RankInfo, setup: Setup, folder: str) -> dict[str, Any]:
    """Train, export, train on with a new optimizer; and start another backend from the export."""
    backend, stack = make_both(rank_info, setup)
    train(stack, rank_info, [0, 1])
    backend.export(folder)
    said = log_probs(backend.policy, batch(9))
    backend.optimizer.state.clear()
    train(stack, rank_info, [2, 3])
    bundle = ModelBundle(setup.model_dir, ModelConfig(path=folder))
    other = make_backend(rank_info, setup, bundle=bundle)
    started = log_probs(other.policy, batch(9))
    averages = {} if other.ema is None else other.ema.shadow
    same_average = all(
        torch.equal(local_part(average), local_part(other.trainable[name].detach()))
        for name, average in averages.items()
    )
    train(make_stack(other, setup), rank_info, [2, 3])
    return {
        "said": said,
        "started": started,
        "same average": same_average,
        "straight": backend.full_state(),
        "from export": other.full_state(),
    }


@pytest.mark.parametrize("world_size", [1, 2])
def test_training_from_exported_adapters_equals_training_on(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path, world_size: int
) -> None:
    setup = Setup(str(tiny_model_dir), lora=ADAPTER)
    got = ranks.run(world_size, goes_on, setup, str(tmp_path / "adapters"))[0]
    assert torch.equal(got["said"], got["started"])
    assert got["straight"].keys() == got["from export"].keys()
    for name, value in got["straight"].items():
        assert torch.equal(value, got["from export"][name]), name


def test_an_average_starts_as_a_copy_of_exported_adapters(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    setup = Setup(str(tiny_model_dir), lora=ADAPTER, ema=EmaLoraConfig(decay=0.5, evaluate=False))
    got = ranks.run(1, goes_on, setup, str(tmp_path / "adapters"))[0]
    assert torch.equal(got["said"], got["started"]) and got["same average"]


@pytest.fixture(scope="module")
def adapters(
    ranks: Ranks, tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Tensor]:
    """A folder of adapters, and what the policy that was exported says."""
    folder = tmp_path_factory.mktemp("exported") / "adapters"
    got = ranks.run(1, goes_on, Setup(str(tiny_model_dir), lora=ADAPTER), str(folder))[0]
    return folder, got["said"]


def recipe_from(folder: Path, **changes: Any) -> Any:
    data = {"train": ["rows.jsonl"], "eval": ["rows.jsonl"]}
    return parse_recipe({"name": "on", "model": {"path": str(folder)}, "data": data, **changes})


def test_adapters_without_lora_are_merged_once(
    adapters: tuple[Path, Tensor], tiny_model_dir: Path, tmp_path: Path
) -> None:
    folder, said = adapters
    recipe = recipe_from(folder, lora=None)
    check_models(recipe, tmp_path)
    whole = locate_start(recipe, tmp_path)
    policy = ModelBundle(whole, ModelConfig(path=str(folder))).policy.eval()
    torch.testing.assert_close(log_probs(policy, batch(9)), said, atol=1e-5, rtol=0)
    written = (Path(whole) / "model.safetensors").stat().st_mtime_ns
    # An evaluation reads the same folder, from a home of the same models.
    assert find_candidate(str(folder), Home(tmp_path)).weights is not None
    assert locate(str(folder), tmp_path) == whole
    assert (Path(whole) / "model.safetensors").stat().st_mtime_ns == written
    lora = {"rank": 4, "alpha": 8}
    assert locate_start(recipe_from(folder, lora=lora), tmp_path) == str(tiny_model_dir)
    # Prompts are prepared with the base's tokenizer in either case.
    kept = tokenizer_identity(str(tiny_model_dir), tmp_path).rpartition("(")[2]
    assert tokenizer_identity(str(folder), tmp_path).rpartition("(")[2] == kept


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"rank": 8, "alpha": 8}, "lora.rank is 8, and the adapters of model.path .* have 4; set"),
        ({"rank": 4, "alpha": 16}, "lora.alpha is 16, and .* have 8; set lora.alpha=8"),
        (
            {"rank": 4, "alpha": 8, "target_modules": ["q_proj"]},
            "lora.target_modules is q_proj, and .* stand beside .*down_proj",
        ),
    ],
)
def test_other_adapters_than_the_recipes_are_refused(
    adapters: tuple[Path, Tensor], tmp_path: Path, lora: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        check_models(recipe_from(adapters[0], lora=lora), tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_dora": True}, "adapters with use_dora cannot be trained from; merge them"),
        ({"peft_type": "IA3"}, "adapters with peft_type IA3 cannot be trained from"),
        ({"base_model_name_or_path": None}, "names no base model; set base_model_name_or_path"),
        ({"base_model_name_or_path": "/gone/base"}, "/gone/base, is not on this machine; name"),
        ({"r": "four"}, "states no r and lora_alpha"),
    ],
)
def test_adapters_that_cannot_be_used_are_refused_by_name(
    adapters: tuple[Path, Tensor], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(adapters[0], folder)
    file = folder / ADAPTER_CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(ModelError, match=said):
        check_models(recipe_from(folder, lora=None), tmp_path / "models")


def test_adapters_of_another_base_or_tokenizer_are_refused(
    adapters: tuple[Path, Tensor], tmp_path: Path
) -> None:
    folder = tmp_path / "changed"
    shutil.copytree(adapters[0], folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ModelError, match="chat template of the tokenizer beside the adapters"):
        locate(str(folder), tmp_path / "models")
    shutil.copytree(adapters[0], folder, dirs_exist_ok=True)
    tensors = load_file(folder / ADAPTER_WEIGHTS)
    name = min(tensors)
    save_file({**tensors, name: torch.zeros(4, 5)}, folder / ADAPTER_WEIGHTS)
    with pytest.raises(ModelError, match=r"does not fit this base and lora: .* is \(4, 5\) in"):
        locate(str(folder), tmp_path / "models")
    (folder / ADAPTER_WEIGHTS).write_bytes(b"cut")
    with pytest.raises(ModelError, match="cannot be read"):
        locate(str(folder), tmp_path / "models")
    assert not list((tmp_path / "models").glob("merged-*"))
    (folder / ADAPTER_WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"have no adapter_model\.safetensors"):
        adapter_folder(str(folder))


def test_a_domain_of_whole_models_refuses_adapters(
    adapters: tuple[Path, Tensor], tmp_path: Path
) -> None:
    recipe = load_recipe("smoke/diffusion", [f"model.path={adapters[0]}"])
    with pytest.raises(ModelError, match="domain diffusion starts from whole models"):
        check_models(recipe, tmp_path)
