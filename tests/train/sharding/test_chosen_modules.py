"""The modules that a recipe names: those FSDP wraps, and the one that is trained."""

from pathlib import Path

import pytest
from torch.distributed.fsdp import FSDPModule

from rl_core.errors import RecipeError
from rl_core.models.diffusion.bundle import DiffusionBundle
from rl_core.ranks.rank_info import RankInfo
from rl_core.train.fsdp import FSDPBackend
from rl_core.train.sharding.chosen_modules import FSDPOptions, chosen_blocks, freeze_the_rest
from schemas.recipe import (
    FSDPConfig,
    LoraConfig,
    LrSchedulerConfig,
    ModelConfig,
    OptimizerConfig,
)
from tests.train.jobs import LORA, make_bundle
from tests.train.ranks import Ranks


def backend_of(
    rank_info: RankInfo, model_dir: str, options: dict[str, object], lora: LoraConfig | None
) -> FSDPBackend:
    return FSDPBackend(
        make_bundle(model_dir),
        FSDPConfig(),
        OptimizerConfig(),
        LrSchedulerConfig(),
        lora,
        total_steps=1,
        seed=0,
        with_reference=False,
        rank_info=rank_info,
        settings=FSDPBackend.Config.model_validate(options),
    )


def wrapped_and_trained(
    rank_info: RankInfo, model_dir: str, options: dict[str, object], lora: LoraConfig | None = None
) -> tuple[set[str], list[str]]:
    """Classes of the wrapped modules below the root, and names of the trained parameters."""
    backend = backend_of(rank_info, model_dir, options, lora)
    modules = [
        one
        for one in backend.policy.modules()
        if isinstance(one, FSDPModule) and one is not backend.policy
    ]
    return {type(one).__name__.removeprefix("FSDP") for one in modules}, list(backend.trainable)


def refusal(rank_info: RankInfo, model_dir: str, options: dict[str, object]) -> str:
    try:
        backend_of(rank_info, model_dir, options, None)
    except RecipeError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_the_named_classes_are_wrapped_one_by_one(ranks: Ranks, tiny_model_dir: Path):
    run, model = ranks.run, str(tiny_model_dir)
    usual, _ = run(1, wrapped_and_trained, model, {})[0]
    assert usual == {"LlamaDecoderLayer"}
    named = {"block_class_names": ["LlamaAttention"]}
    assert run(1, wrapped_and_trained, model, named)[0][0] == set(named["block_class_names"])


@pytest.mark.parametrize("lora", [None, LORA])
def test_only_the_named_part_is_trained(
    ranks: Ranks, tiny_model_dir: Path, lora: LoraConfig | None
):
    options = {"trainable_attr": "model.layers.1"}
    _, trained = ranks.run(1, wrapped_and_trained, str(tiny_model_dir), options, lora)[0]
    assert trained
    assert all(".layers.1." in name for name in trained)
    assert all("lora" in name for name in trained) is (lora is not None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"block_class_names": ["LlamaDecoderLayer", "JointTransformerBlock"]},
            "backend.block_class_names: no module of the model is a JointTransformerBlock; its "
            "classes are Embedding, ",
        ),
        (
            {"trainable_attr": "transformer"},
            "backend.trainable_attr: the model has no module 'transformer'; it has model, "
            "model.embed_tokens, model.layers, model.norm, model.rotary_emb, lm_head",
        ),
        (
            {"trainable_attr": "model.rotary_emb"},
            "backend.trainable_attr: model.rotary_emb holds no parameter that learns",
        ),
    ],
)
def test_a_name_that_the_model_does_not_have_is_refused_with_those_it_has(
    ranks: Ranks, tiny_model_dir: Path, options: dict[str, object], said: str
):
    assert ranks.run(1, refusal, str(tiny_model_dir), options)[0].startswith(said)


def test_a_pipelines_transformer_and_blocks_are_named_as_in_unirl(tiny_sd3_dir: Path):
    policy = DiffusionBundle(str(tiny_sd3_dir), ModelConfig(path=str(tiny_sd3_dir))).policy
    whole = FSDPOptions(block_class_names=["JointTransformerBlock"], trainable_attr="transformer")
    freeze_the_rest(policy, whole)
    assert all(parameter.requires_grad for parameter in policy.parameters())
    assert chosen_blocks(policy, whole) == list(policy.model.transformer_blocks)
    freeze_the_rest(policy, FSDPOptions(trainable_attr="proj_out"))
    trained = [name for name, one in policy.named_parameters() if one.requires_grad]
    assert trained == ["model.proj_out.weight", "model.proj_out.bias"]
