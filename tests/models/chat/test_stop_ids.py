"""What ends replies in rollouts ends them for whoever runs the export, and ends the answers of
pairs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rl_core.demo.questions import Question
from rl_core.demo.speaker import Speaker
from rl_core.models.adapters.lora import inject_lora
from rl_core.models.bundle import ModelBundle
from rl_core.models.causal_lm import CausalLMPolicy
from rl_core.models.chat.turns import CannotContinue
from rl_core.models.checks.comparison import Live
from rl_core.models.export.folder import export_policy
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.chat.pair_tokens import PairEncoder
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.dedicated import Replica
from rl_core.rollout.engine import RolloutEngine
from schemas.recipe import DType, LoraConfig, ModelConfig, Recipe
from schemas.sections.policy import ExportKind
from schemas.sections.preference import PreferenceConfig
from schemas.sections.rollout import RolloutConfig, SyncMode

END, BASE_END = "<|im_end|>", "<|unk|>"


@pytest.fixture
def base_model_dir(tiny_model_dir: Path, tmp_path: Path) -> Path:
    """A model as base models come: its configuration and tokenizer stop at one token, its template
    ends turns with another."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(tiny_model_dir)
    tokenizer.eos_token = BASE_END
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_model_dir)
    model.config.eos_token_id = model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A group of one process."""
    store = dist.FileStore(str(tmp_path / "meeting"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def both_ends(tokenizer: Any) -> list[int]:
    return sorted(tokenizer.convert_tokens_to_ids([END, BASE_END]))


def live_of(bundle: ModelBundle) -> Live:
    return Live(bundle.said_by(bundle.policy.eval(), torch.device("cpu")), torch.float32)


def engine_of(
    folder: Path, template: str | None = None, **env_options: dict[str, Any]
) -> RolloutEngine:
    bundle = ModelBundle(str(folder), ModelConfig(path=str(folder)))
    bundle.tokenizer.chat_template = template or bundle.tokenizer.chat_template
    replica = Replica(bundle, None, SyncMode.FULL, DType.FLOAT32, RankInfo(0, 1, "cpu", 1))
    return RolloutEngine(replica, RolloutConfig(), env_options, {}, 0)


@pytest.mark.parametrize(
    "lora", [None, LoraConfig(rank=2), LoraConfig(rank=2, export=ExportKind.ADAPTER)]
)
def test_an_export_stops_where_training_stopped(
    base_model_dir: Path, tmp_path: Path, lora: LoraConfig | None
):
    from transformers import GenerationConfig

    bundle = ModelBundle(str(base_model_dir), ModelConfig(path=str(base_model_dir)))
    policy: CausalLMPolicy = bundle.load_policy()
    if lora is not None:
        inject_lora(policy, lora, seed=0)
    trained = {
        name: value.detach() for name, value in policy.named_parameters() if value.requires_grad
    }
    export_policy(bundle, trained, lora, tmp_path / "out", live_of(bundle))
    assert GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id == both_ends(
        bundle.tokenizer
    )


def test_an_export_of_a_model_with_one_end_keeps_it(tiny_model_dir: Path, tmp_path: Path):
    from transformers import GenerationConfig

    bundle = ModelBundle(str(tiny_model_dir), ModelConfig(path=str(tiny_model_dir)))
    export_policy(bundle, {}, None, tmp_path / "out", live_of(bundle))
    assert (
        GenerationConfig.from_pretrained(tmp_path / "out").eos_token_id
        == bundle.tokenizer.eos_token_id
    )


@pytest.mark.usefixtures("alone")
def test_the_engine_samples_up_to_either_end(base_model_dir: Path):
    engine = engine_of(base_model_dir)
    assert list(engine.sampling(8, 1.0).eos_ids) == both_ends(engine.tokenizer)


@pytest.mark.usefixtures("alone")
def test_the_engine_refuses_environments_of_several_turns_when_it_is_made(base_model_dir: Path):
    last_only = "{{ messages[-1].content }}"
    with pytest.raises(
        CannotContinue, match=r"environment search has several turns: .* leaves out the assistant's"
    ):
        engine_of(base_model_dir, last_only, gsm8k={}, search={})
    engine_of(base_model_dir, last_only, gsm8k={}, search={"max_turns": 1})


def recipe_of(model: Path) -> Recipe:
    data = {"train": ["a.jsonl"], "eval": ["b.jsonl"]}
    return Recipe.model_validate({"name": "mine", "model": {"path": str(model)}, "data": data})


def test_the_demo_stops_where_training_did(base_model_dir: Path, monkeypatch: pytest.MonkeyPatch):
    speaker = Speaker(str(base_model_dir), recipe_of(base_model_dir), "cpu")
    end = speaker.tokenizer.convert_tokens_to_ids(END)
    head: Any = speaker.policy.language_model.lm_head
    likeliest = torch.nn.functional.one_hot(torch.tensor(end), head.out_features) * 10.0
    monkeypatch.setattr(head, "forward", lambda hidden: likeliest.expand(*hidden.shape[:-1], -1))
    answer = speaker.answer(
        Question([{"role": "user", "content": "1"}], max_new_tokens=8, temperature=0.0, seed=0)
    )
    assert (answer.text, answer.is_cut) == ("", False)


def test_answers_of_pairs_end_as_replies_do(base_model_dir: Path, tiny_model_dir: Path):
    item = {
        "prompt": [{"role": "user", "content": "1"}],
        "chosen": "2",
        "rejected": "3",
        "env_extras": {},
    }
    for folder in (base_model_dir, tiny_model_dir):
        tokenizer = ModelBundle(str(folder), ModelConfig(path=str(folder))).tokenizer
        pair = PairEncoder(ChatFormat(tokenizer, {}), PreferenceConfig(), 512)(item)
        assert tokenizer.decode(pair.chosen) == f"2{END}"
