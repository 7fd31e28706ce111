"""Models that also see, as policies over text: what they say is what they say themselves, by every
path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from rl_core.data.prepare.prompt_lengths import LengthCounter
from rl_core.errors import DataError, ModelError
from rl_core.models.bundle import ModelBundle, TextBundle
from rl_core.models.causal_lm import CausalLMPolicy, blocks
from rl_core.models.checks.comparison import Live
from rl_core.models.decoding.decode import decode
from rl_core.models.decoding.request import Request, Sampling
from rl_core.models.export.folder import export_policy
from rl_core.models.family import load_policy
from rl_core.models.locate import model_shape
from rl_core.models.text_part import TextPartPolicy
from rl_core.rollout.chat.vision import chat_format, prompt_tokenizer
from rl_core.train.sharding.memory import num_parameters
from schemas.recipe import ModelConfig
from schemas.sections.policy import ModelPart
from tests.models.tiny_seeing import MAKERS, save

CPU = torch.device("cpu")
ROW = {"prompt": [{"role": "user", "content": "1+2="}], "env_extras": {"images": ["one.png"]}}


@pytest.fixture(params=MAKERS)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return save(request.param, tmp_path / request.param)


def policy_of(folder: Path, **changes: Any) -> CausalLMPolicy:
    return load_policy(str(folder), ModelConfig(path=str(folder), **changes), text_alone=True)


@torch.no_grad()
def test_every_path_gives_what_the_whole_model_gives(folder: Path):
    policy = policy_of(folder)
    assert isinstance(policy, TextPartPolicy)
    assert policy.paths is not None
    assert not policy.paths.refused
    truth = policy.paths.truth
    assert truth is not None
    model, said = policy.language_model, []
    for prompt, group in zip(truth.prompts, truth.responses, strict=True):
        for response in group:
            ids = torch.tensor([[*prompt, *response]])
            log_probs = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            said.append(log_probs.gather(-1, ids[0, len(prompt) :, None])[:, 0].tolist())
    found = policy(**truth.batch())[0]
    for row, values in enumerate(said):
        assert found[row, : len(values)].tolist() == pytest.approx(values, abs=2e-4)


@torch.no_grad()
def test_greedy_replies_are_those_of_transformers(folder: Path):
    policy, ids = policy_of(folder), [10, 20, 30, 40, 50]
    sampling = Sampling(max_new_tokens=6, temperature=0.0, eos_ids=(3,), pad_id=0)
    (reply,) = decode(policy, [Request(ids, 1, 100)], sampling, torch.Generator(), CPU)
    written = policy.language_model.generate(
        input_ids=torch.tensor([ids]),
        do_sample=False,
        max_new_tokens=6,
        eos_token_id=3,
        pad_token_id=0,
    )
    assert reply.token_ids == written[0, len(ids) :].tolist()


def test_blocks_of_the_language_model_are_wrapped_one_by_one(folder: Path):
    policy = policy_of(folder)
    assert isinstance(policy, TextPartPolicy)
    found = blocks(policy)
    assert (
        sum(any(module is block for module in policy.language_part.modules()) for block in found)
        == 2
    )


def test_an_untrained_export_is_the_checkpoint_it_came_from(folder: Path, tmp_path: Path):
    bundle = TextBundle(str(folder), ModelConfig(path=str(folder)))
    live = Live(bundle.said_by(bundle.policy.eval(), torch.device("cpu")), torch.float32)
    export_policy(bundle, {}, None, tmp_path / "out", live)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()
    before, after = (
        json.loads((one / "config.json").read_text()) for one in (folder, tmp_path / "out")
    )
    assert before == after


def test_rows_with_pictures_are_refused_by_row_type_and_remedy(folder: Path):
    why = (
        f"models of type '{folder.name}' are trained on text alone; leave the row out, or use "
        ".*qwen2_5_vl"
    )
    for text_alone in (True, False):
        counter = LengthCounter(prompt_tokenizer(str(folder), text_alone=text_alone))
        with pytest.raises(DataError, match=f"rows.jsonl:3: the row has images, and {why}"):
            counter.lengths([ROW], ["rows.jsonl:3"])
    chat = chat_format(ModelBundle(str(folder), ModelConfig(path=str(folder))), {})
    with pytest.raises(ModelError, match=why):
        chat.encode_prompt(ROW["prompt"], ROW)


def test_pictures_in_a_run_of_text_on_a_model_that_sees_are_refused(tiny_vlm_dir: Path):
    counter = LengthCounter(prompt_tokenizer(str(tiny_vlm_dir), text_alone=True))
    with pytest.raises(
        DataError, match=r"a:1: .*trains idefics3 on text alone; set domain: vision"
    ):
        counter.lengths([ROW], ["a:1"])


def test_a_language_model_that_is_frozen_is_refused(tmp_path: Path):
    with pytest.raises(
        ModelError, match=r"model.frozen names language_model, but rows of text train nothing else"
    ):
        policy_of(save("mistral3", tmp_path / "model"), frozen=[ModelPart.LANGUAGE_MODEL])


def test_a_model_that_reads_with_an_encoder_is_refused_by_type(tmp_path: Path):
    from transformers import PaliGemmaConfig

    config = PaliGemmaConfig()
    config.is_encoder_decoder = True
    config.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="models of type 'paligemma' read with an encoder"):
        policy_of(tmp_path)


def test_memory_is_estimated_from_the_language_model(folder: Path, tmp_path: Path):
    shape = model_shape(str(folder), tmp_path)
    assert shape is not None
    assert shape["hidden_size"] == 32
    assert num_parameters(shape) > 32 * shape["vocab_size"]


def test_a_config_that_leaves_defaults_out_is_read_with_those_of_its_class(tmp_path: Path):
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 96,
    }
    whole = {
        "model_type": "gemma3",
        "text_config": text,
        "vision_config": {"model_type": "siglip_vision_model"},
    }
    (tmp_path / "config.json").write_text(json.dumps(whole))
    shape = model_shape(str(tmp_path), tmp_path)
    assert shape is not None
    assert shape["num_attention_heads"] == 8
    assert shape["tie_word_embeddings"] is True
