"""A base of 4 bits under adapters: the rounded model is the one that trains, samples and is
exported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor
from transformers import AutoModelForCausalLM

from rl_core.errors import ModelError, RecipeError
from rl_core.models.bundle import ModelBundle
from rl_core.models.quantized import QuantizedLinear, unpack
from rl_core.ranks.rank_info import RankInfo
from rl_core.runs.recipes import load_recipe
from rl_core.runs.run_plan import measuring, starting_from
from rl_core.train import needs
from schemas.recipe import ModelConfig
from tests.train.jobs import LORA, Setup, make_backend, make_both, train_steps
from tests.train.ranks import Ranks


def bundle_of(model_dir: str) -> ModelBundle:
    return ModelBundle(model_dir, ModelConfig(path=model_dir, quantize="nf4"))


def test_a_weight_has_sixteen_values_a_block_and_is_a_ninth_of_its_size_off(
    tiny_model_dir: Path,
) -> None:
    rounded, whole = bundle_of(str(tiny_model_dir)), ModelConfig(path=str(tiny_model_dir))
    layers = {
        name: layer
        for name, layer in rounded.policy.named_modules()
        if isinstance(layer, QuantizedLinear)
    }
    assert len(layers) == 2 * 7, "seven matrices in each of two blocks"
    exact = dict(ModelBundle(str(tiny_model_dir), whole).policy.named_parameters())
    for name, layer in layers.items():
        weight = exact[f"{name}.weight"]
        assert layer.packed.nbytes == weight.numel() // 2
        assert all(len(block.unique()) <= 16 for block in layer.weight.view(-1, 64))
        assert float(((layer.weight - weight).norm() / weight.norm()).detach()) < 0.11
    trained = {name for name, _ in rounded.policy.named_parameters()}
    assert trained == {name for name in exact if "proj" not in name}


def test_a_product_is_that_of_the_unpacked_weights(tiny_model_dir: Path) -> None:
    bundle = bundle_of(str(tiny_model_dir))
    packed = bundle.said_by(bundle.policy, torch.device("cpu"))
    unpack(bundle.policy)
    assert torch.equal(bundle.said_by(bundle.policy, torch.device("cpu")), packed)
    assert not any(isinstance(layer, QuantizedLinear) for layer in bundle.policy.modules())


def trained(rank_info: RankInfo, setup: Setup, out: str) -> tuple[dict[str, Tensor], Tensor]:
    """Train three steps, save, and export. Returns: the adapters, and the policy's results on the
    probe inputs."""
    bundle = bundle_of(setup.model_dir)
    backend, stack = make_both(rank_info, setup, bundle=bundle)
    train_steps(stack, rank_info, [0, 1, 2])
    backend.export(out)
    with backend.gathered() as policy:
        return backend.full_state(), bundle.said_by(policy, torch.device("cpu"))


@pytest.mark.slow
def test_two_ranks_train_as_one_and_the_export_is_the_rounded_model_with_adapters(
    ranks: Ranks, tiny_model_dir: Path, tmp_path: Path
) -> None:
    setup = Setup(str(tiny_model_dir), lora=LORA)
    one, said = ranks.run(1, trained, setup, str(tmp_path / "one"))[0]
    two, _ = ranks.run(2, trained, setup, str(tmp_path / "two"))[0]
    assert one.keys() == two.keys() and all("lora" in name for name in one)
    assert any(float(value.abs().max()) for name, value in one.items() if "lora_B" in name)
    for name, value in one.items():
        torch.testing.assert_close(two[name], value, atol=1e-5, rtol=0, msg=name)
    # Plain transformers reads it, and gives what the policy gave.
    exported = ModelBundle(str(tmp_path / "one"), ModelConfig(path=str(tmp_path / "one")))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert not any(isinstance(layer, QuantizedLinear) for layer in model.modules())
    torch.testing.assert_close(
        exported.said_by(exported.policy, torch.device("cpu")), said, atol=1e-4, rtol=0
    )


def refused(rank_info: RankInfo, setup: Setup) -> str:
    try:
        make_backend(rank_info, setup, bundle=bundle_of(setup.model_dir))
    except ModelError as error:
        return str(error)
    return ""


def test_without_adapters_there_is_nothing_to_train(ranks: Ranks, tiny_model_dir: Path) -> None:
    (said,) = ranks.run(1, refused, Setup(str(tiny_model_dir)))
    assert "weights of 4 bits cannot be trained: set lora" in said


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["lora=null"], "cannot be trained; set lora"),
        (["lora.export=adapter"], "another model; use merged"),
        (["model.exact=true"], "leave out one of them"),
        (["placement.tp_size=2", "placement.num_devices=2"], "tp_size: 2 cuts matrices"),
        (
            ["rollout.engine=dedicated", "placement.rollout_devices=1", "placement.num_devices=2"],
            "rollout.engine: dedicated would sample from the base in full precision",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_reason(overrides: list[str], said: str) -> None:
    base = ["model.quantize=nf4", "lora={rank: 4}"]
    with pytest.raises((ValidationError, RecipeError), match=r"model\.quantize: nf4") as caught:
        load_recipe("smoke/text", [*base, *overrides])
    assert said in str(caught.value)


def test_other_domains_and_a_missing_package_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = ["model.quantize=nf4", "lora={rank: 4}"]
    with pytest.raises((ValidationError, RecipeError), match="no language model of one folder"):
        load_recipe("smoke/diffusion", asked)
    monkeypatch.setattr(needs, "find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"nf4 needs bitsandbytes.*pip install"):
        load_recipe("smoke/text", asked)


def test_a_finished_model_is_measured_as_it_is_stored(tmp_path: Path) -> None:
    recipe = load_recipe("smoke/text", ["model.quantize=nf4", "lora={rank: 4}"])
    measured = measuring(recipe, str(tmp_path))
    assert (measured.model.path, measured.model.quantize) == (str(tmp_path), None)
    assert starting_from(recipe, str(tmp_path)).model.quantize == "nf4", "training rounds its base"
