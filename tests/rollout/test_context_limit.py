"""Conversations end where the model's positions do, in every turn, rollout and evaluation alike."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

from rl_core.data_proto import DataProto
from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, register
from rl_core.envs import registration as registration_module
from rl_core.errors import ModelError
from rl_core.models.decoding.request import StopReason
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.engine import RolloutEngine
from rl_core.trainers.track import prompt_batch
from schemas.sections.rollout import RolloutConfig
from tests.train.jobs import Setup, make_backend

POSITIONS = 60


class Talker(BaseTextEnv):
    """Answers every reply, and never ends the conversation."""

    def step(self, action: str) -> BaseTextEnvStepOutput:
        said = {"role": "user", "content": "ok"}
        return BaseTextEnvStepOutput(observations=[said], reward=1.0, done=False, metadata={})


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration_module, "_specs", {})
    register("talker", Talker)


@pytest.fixture(scope="module")
def folder(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Learned positions, whose table ends: one token too many is an IndexError."""
    made, tokenizer = (
        tmp_path_factory.mktemp("positions"),
        AutoTokenizer.from_pretrained(tiny_model_dir),
    )
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=POSITIONS,
        n_embd=32,
        n_layer=2,
        n_head=2,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(made)
    tokenizer.save_pretrained(made)
    return made


def engine(folder: Path, **settings: Any) -> RolloutEngine:
    backend = make_backend(RankInfo(0, 1, "cpu", 1), Setup(str(folder)))
    config = RolloutConfig(samples_per_prompt=2, max_new_tokens=8, **settings)
    return RolloutEngine(backend, config, {}, {}, 0)


def prompts() -> DataProto:
    extras = {"reward_spec": {"ground_truth": ""}}
    said = [{"role": "user", "content": "hello"}]
    return prompt_batch([{"uid": "a", "prompt": said, "env_class": "talker", "env_extras": extras}])


def test_turns_end_at_the_last_position(folder: Path) -> None:
    sampling = engine(folder)
    assert (
        "rollout.max_context_length is 60, not 2048: GPT2LMHeadModel has 60 positions"
        in sampling.notes()[0]
    )
    for played in (sampling.rollout(prompts(), 0), sampling.evaluate(prompts(), 500)):
        assert played is not None
        assert list(played.non_tensor_batch["error"]) == [None] * len(played)
        assert set(played.non_tensor_batch["stop_reason"]) == {str(StopReason.CONTEXT)}
        lengths_B = played.tensor("attention_mask").sum(1)
        assert bool((lengths_B <= POSITIONS).all())
        assert bool((lengths_B > POSITIONS - 24).all())


def test_more_than_the_positions_is_refused_at_load(folder: Path) -> None:
    with pytest.raises(
        ModelError, match=r"rollout.max_context_length is 61, but GPT2LMHeadModel has 60 positions"
    ):
        engine(folder, max_context_length=61)
