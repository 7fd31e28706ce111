"""What cannot be trained is refused by name: before anything starts where files tell, else when it
is loaded."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from rl_core.errors import ModelError
from rl_core.models.bundle import ModelBundle
from rl_core.models.checks.can_train import check_local_model, check_model
from rl_core.models.checks.shape import CAUSAL, classes_of, known_types
from rl_core.runs.recipes import parse_recipe
from schemas.recipe import ModelConfig, Recipe
from tests.command import rl_train


def recipe(path: str = "some/model", **changes: Any) -> Recipe:
    data = {"train": ["t"], "eval": ["e"], "max_prompt_length": 64}
    return parse_recipe({"name": "x", "model": {"path": path, **changes}, "data": data})


def load(folder: Path) -> ModelBundle:
    return ModelBundle(str(folder), ModelConfig(path=str(folder)))


@pytest.fixture
def folder(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model that a test may spoil."""
    return Path(shutil.copytree(tiny_model_dir, tmp_path / "model"))


def with_weights(folder: Path, change: Any) -> Path:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        change(model)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            {"model_type": "t5", "is_encoder_decoder": True},
            "t5 is an encoder-decoder model; only decoder-only",
        ),
        ({"model_type": "clip"}, "clip is no language model that continues a text"),
        ({"model_type": "lama"}, "does not know the model_type 'lama'"),
        (
            {"model_type": "llama", "quantization_config": {"quant_method": "gptq"}},
            r"quantised \(quant_method gptq\)",
        ),
    ],
)
def test_a_model_that_cannot_be_trained_is_refused_by_name(
    config: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        check_model(recipe(), config)


@pytest.mark.parametrize(
    "model_type", ["llama", "qwen3_5_text", "mamba", "gpt2", "gemma3", "qwen2_vl", "gpt_oss"]
)
def test_odd_families_are_left_to_the_load(model_type: str) -> None:
    check_model(recipe(), {"model_type": model_type})


def test_the_tables_are_those_of_transformers() -> None:
    from transformers.models.auto import modeling_auto
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    assert classes_of(CAUSAL) == dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert set(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - known_types() <= set(
        classes_of(CAUSAL)
    )
    assert known_types() <= set(CONFIG_MAPPING_NAMES)


def test_flash_attention_wants_a_gpu() -> None:
    with pytest.raises(ModelError, match=r"flash_attention_2 runs on GPUs alone; .* use sdpa"):
        check_model(recipe(attention="flash_attention_2"), {"model_type": "llama"})


def test_words_without_a_row_are_refused_before_and_at_load(folder: Path) -> None:
    with_weights(folder, lambda model: model.resize_token_embeddings(60))
    said = r"token ids up to \d+, but the model's embedding has 60 rows \(ids up to 59\)"
    with pytest.raises(ModelError, match=said):
        check_local_model(recipe(str(folder)), folder)
    with pytest.raises(ModelError, match=said):
        load(folder)


def test_special_tokens_beyond_the_embedding_matter_only_where_a_row_has_one(folder: Path) -> None:
    """Gemma 3 of 1B has a token for pictures that its embedding does not know."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|picture|>"]}, replace_extra_special_tokens=False
    )
    tokenizer.save_pretrained(folder)
    policy = load(folder).policy
    last = len(tokenizer) - 1
    fine, bad = torch.tensor([[5, 6]]), torch.tensor([[5, last]])
    mask = torch.ones_like(fine)
    policy.inputs(fine, mask, mask, None)
    with pytest.raises(
        ModelError, match=f"the special token {last}, which the model's embedding of {last} rows"
    ):
        policy.inputs(bad, mask, mask, None)


def test_an_end_token_beyond_the_embedding_is_refused(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"eos_token": "<|end|>"})
    tokenizer.save_pretrained(folder)
    with pytest.raises(ModelError, match="embedding has"):
        load(folder)


def test_rows_without_a_word_are_drawn_and_read_as_nothing(folder: Path) -> None:
    """Embeddings are often padded to a round number; a token that no word has says nothing, and is
    a token all the same."""
    with_weights(folder, lambda model: model.resize_token_embeddings(160))
    bundle = load(folder)
    word = bundle.tokenizer.get_vocab()["a"]
    assert bundle.tokenizer.decode([word, 159, word], skip_special_tokens=True) == "aa"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_no_numbers_are_refused_though_no_probed_row_meets_them(
    folder: Path, value: float
) -> None:
    """The end token's row of the embedding: probes leave special tokens out."""

    def spoil(model: Any) -> None:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
        model.model.embed_tokens.weight[model.config.eos_token_id, 3] = value

    with_weights(folder, spoil)
    with pytest.raises(
        ModelError,
        match=r"1 weights hold NaN or infinity, the first is model\.embed_tokens\.weight",
    ):
        load(folder)


def test_an_encoder_without_causal_attention_is_no_policy(folder: Path) -> None:
    config = AutoConfig.for_model(
        "bert",
        vocab_size=110,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    for name in ("model.safetensors", "generation_config.json"):
        (folder / name).unlink(missing_ok=True)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    with pytest.raises(ModelError, match="is not causal"):
        load(folder)


def test_a_model_with_fewer_positions_than_probes_loads(folder: Path) -> None:
    config = AutoConfig.for_model(
        "gpt2",
        vocab_size=110,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=12,
        bos_token_id=3,
        eos_token_id=3,
    )
    (folder / "model.safetensors").unlink()
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    paths = load(folder).policy.paths
    assert paths is not None
    assert not paths.refused


def spoilt_by_nan(folder: Path) -> Path:
    def spoil(model: Any) -> None:
        model.model.layers[1].mlp.up_proj.weight[2, 1] = float("nan")

    return with_weights(folder, spoil)


@pytest.mark.slow
@pytest.mark.long
def test_a_run_on_a_spoilt_model_ends_with_its_message_and_is_not_retried(
    folder: Path, tmp_path: Path
) -> None:
    done = rl_train(tmp_path / "home", "run", "smoke/text", f"model.path={spoilt_by_nan(folder)}")
    assert done.returncode == 2, done.stderr
    assert (
        "1 weights hold NaN or infinity, the first is model.layers.1.mlp.up_proj.weight"
        in done.stderr
    )
    assert done.stderr.count("error: ") == 1


@pytest.mark.parametrize("arguments", [["--dry-run"], []])
def test_rows_beyond_the_positions_are_refused_before_anything_starts(
    folder: Path, tmp_path: Path, arguments: list[str]
) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 100}))
    done = rl_train(tmp_path / "home", "run", "smoke/text", f"model.path={folder}", *arguments)
    assert done.returncode == 2, done.stderr
    assert "has 100 positions" in done.stderr
    assert "data.max_prompt_length 256 + rollout.max_new_tokens 8" in done.stderr
