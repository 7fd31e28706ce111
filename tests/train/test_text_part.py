"""A model that also sees, trained on text: its language model moves, the rest is exported as it
came."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from rl_core.models.bundle import TextBundle
from rl_core.models.text_part import TextPartPolicy
from rl_core.ranks.rank_info import RankInfo
from schemas.recipe import LoraConfig, ModelConfig
from tests.models.tiny_seeing import MAKERS, save
from tests.train.jobs import LORA, Setup, batch, log_probs, make_backend, make_stack, train_steps
from tests.train.ranks import Ranks
from tests.train.test_export import transformers_log_probs

WAYS = {
    "full": None,
    "adapters": LORA,
    "adapters by name": LoraConfig(rank=4, alpha=8, target_modules=["q_proj"]),
}
NOT_TEXT = ("vis", "multi_modal", "mm_", "connector")
"""What stands in the names of towers and projectors."""


def exported(rank_info: RankInfo, setup: Setup, folder: str) -> dict[str, Any]:
    """Train, export, and say what the policy gives before and after, and what was trained."""
    bundle = TextBundle(setup.model_dir, ModelConfig(path=setup.model_dir))
    backend = make_backend(rank_info, setup, bundle=bundle)
    stack, rows, said = make_stack(backend, setup), batch(9), {}
    said["names"] = list(backend.trainable)
    said["formats"] = {name: value.dtype for name, value in backend.policy.named_parameters()}
    said["start"] = log_probs(backend.policy, rows)
    train_steps(stack, rank_info, [0, 1])
    said["trained"] = log_probs(backend.policy, rows)
    backend.export(folder)
    return said


def weights(folder: Path) -> dict[str, Tensor]:
    return {
        name: value
        for file in folder.glob("*.safetensors")
        for name, value in load_file(file).items()
    }


def same_bits(one: Tensor, two: Tensor) -> bool:
    return one.dtype == two.dtype and torch.equal(one, two)


def is_text(name: str) -> bool:
    return not any(mark in name for mark in NOT_TEXT)


# The usual targets are found alike in all kinds but for experts, beside which they stand elsewhere.
@pytest.mark.parametrize(
    ("kind", "way"),
    [
        *((kind, way) for kind in MAKERS for way in ("full", "adapters by name")),
        *((kind, "adapters") for kind in ("gemma3", "llama4", "qwen3_5_moe")),
    ],
)
def test_only_the_language_model_is_trained_and_the_export_is_the_policy(
    ranks: Ranks, tmp_path: Path, kind: str, way: str
) -> None:
    import transformers

    base, out = save(kind, tmp_path / "base"), tmp_path / "model"
    said = ranks.run(1, exported, Setup(str(base), lora=WAYS[way]), str(out))[0]
    assert said["names"]
    assert all(is_text(name) for name in said["names"])
    before, after = weights(base), weights(out)
    assert before.keys() == after.keys()
    moved = {name for name in before if not same_bits(before[name], after[name])}
    assert moved
    assert all(is_text(name) for name in moved)
    (architecture,) = json.loads((out / "config.json").read_text())["architectures"]
    assert (
        architecture
        == type(MAKERS[kind](TextBundle(str(base), ModelConfig(path=str(base))).tokenizer)).__name__
    )
    loaded = getattr(transformers, architecture).from_pretrained(out)
    assert type(loaded) is type(transformers.AutoModelForImageTextToText.from_pretrained(out))
    torch.testing.assert_close(
        transformers_log_probs(loaded, batch(9)), said["trained"], atol=1e-5, rtol=0
    )
    assert (said["trained"] - said["start"]).abs().max() > 1e-4


def test_what_is_left_alone_keeps_its_bits_and_its_files(ranks: Ranks, tmp_path: Path) -> None:
    base, out = save("qwen3_5", tmp_path / "base", torch.bfloat16), tmp_path / "model"
    held = load_file(base / "model.safetensors")
    # Checkpoints keep some tensors in more bits than the rest, and layers that the class does not
    # read.
    wide = "model.visual.merger.linear_fc1.weight"
    held[wide] = torch.randn(held[wide].shape)
    held["mtp.norm.weight"] = torch.randn(32)
    save_file(held, base / "model.safetensors", metadata={"format": "pt"})
    ranks.run(1, exported, Setup(str(base), lora=LORA), str(out))
    after = weights(out)
    assert held.keys() == after.keys()
    assert same_bits(after[wide], held[wide])
    assert same_bits(after["mtp.norm.weight"], held["mtp.norm.weight"])
    frozen = [name for name in held if not is_text(name)]
    assert len(frozen) > 10
    assert all(same_bits(after[name], held[name]) for name in frozen)
    for name in ("preprocessor_config.json", "processor_config.json"):
        assert (out / name).read_text() == (base / name).read_text()
    again = TextBundle(str(out), ModelConfig(path=str(out)))
    assert again.tokenizer.chat_template


def test_towers_are_not_kept_in_float32(ranks: Ranks, tmp_path: Path) -> None:
    setup = Setup(str(save("gemma3", tmp_path / "base")), fsdp={"param_dtype": "bfloat16"})
    said = ranks.run(1, exported, setup, str(tmp_path / "model"))[0]
    formats = {is_text(name): dtype for name, dtype in said["formats"].items()}
    assert formats == {True: torch.float32, False: torch.bfloat16}


def test_two_ranks_train_what_one_rank_trains(ranks: Ranks, tmp_path: Path) -> None:
    base = save("gemma3", tmp_path / "base")
    setup = Setup(str(base), stack={"micro_batch_size": 1})
    one = ranks.run(1, exported, setup, str(tmp_path / "one"))[0]
    two = ranks.run(2, exported, setup, str(tmp_path / "two"))[0]
    torch.testing.assert_close(one["trained"], two["trained"], atol=1e-4, rtol=0)


def test_a_model_that_can_be_trained_on_pictures_is_trained_on_text_without_its_processor(
    ranks: Ranks, tiny_vlm_dir: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForImageTextToText

    out = tmp_path / "model"
    said = ranks.run(1, exported, Setup(str(tiny_vlm_dir)), str(out))[0]
    assert all("text_model" in name or "lm_head" in name for name in said["names"])
    loaded = AutoModelForImageTextToText.from_pretrained(out)
    torch.testing.assert_close(
        transformers_log_probs(loaded, batch(9)), said["trained"], atol=1e-5, rtol=0
    )
    bundle = TextBundle(str(tiny_vlm_dir), ModelConfig(path=str(tiny_vlm_dir)))
    assert isinstance(bundle.policy, TextPartPolicy)
    assert bundle.processor is None
    assert (out / "preprocessor_config.json").exists() or (out / "processor_config.json").exists()
