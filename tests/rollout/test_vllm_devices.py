"""One vLLM server over two devices, for real on a CPU, with a process for each: it says what the
trainer says, and ends with its rank."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rl_core.errors import WeightMismatch
from schemas.recipe import Recipe
from schemas.sections.sampling import SamplingConfig
from tests.processes import still_running
from tests.rollout.built import engine_of
from tests.rollout.vllm_parts import (
    ON_VLLM,
    TOLERANCE,
    AskedTrainer,
    agree,
    distance,
    make_model,
    recipe,
    requests,
    running,
    sampling,
    tokens,
)

pytestmark = ON_VLLM


def on_two_devices(folder: Path) -> Recipe:
    values = recipe(folder, restarts=3).model_dump(mode="json", by_alias=True)
    values["rollout"]["vllm"]["tensor_parallel_size"] = 2
    values["placement"] |= {
        "num_devices": 3,
        "rollout_devices": 2,
        "collective_timeout_s": 30,
    }
    return Recipe.model_validate(values)


@pytest.fixture(scope="module")
def model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tiny_model_dir, tmp_path_factory.mktemp("vllm") / "model")


@pytest.fixture(scope="module")
def trainer(ray_cluster: None, model_dir: Path) -> Iterator[AskedTrainer]:
    """One rank that trains, one that samples on two devices."""
    with running(on_two_devices(model_dir)) as trainer:
        trainer.sync_weights()
        yield trainer


def test_the_model_is_cut_in_two_processes_which_say_what_our_own_decoding_says(
    trainer: AskedTrainer,
):
    (server,) = engine_of(trainer).server_pid()
    workers = psutil.Process(server).children(recursive=True)
    assert len([one for one in workers if "Worker_TP" in one.cmdline()[0]]) == 2
    said = [agree(trainer)]
    for _ in range(3):
        metrics, _ = trainer.step()
        assert 0.0 <= metrics["delta_log_prob_max"] < TOLERANCE
        said.append(agree(trainer))
    assert said[0] != said[-1]


def test_what_could_be_drawn_comes_from_the_process_that_drew(trainer: AskedTrainer):
    asked = [replace(one, seed=seed) for seed, one in enumerate(requests())]
    drawn = replace(sampling(12), choice=SamplingConfig(top_k=5), records_support=True)
    together = engine_of(trainer).ask(asked, drawn, 0)[0]
    expected = engine_of(trainer).follow(asked, together, drawn)[0]
    assert repr([one.support for one in together]) == repr([one.support for one in expected])
    scores = ([one.log_probs for one in some] for some in (together, expected))
    assert distance(*scores) < TOLERANCE
    apart = engine_of(trainer).ask_one_by_one(asked, drawn)[0]
    assert tokens(apart) == tokens(together)
    assert repr([one.support for one in apart]) == repr([one.support for one in together])


def test_one_tampered_bit_is_caught(trainer: AskedTrainer):
    engine_of(trainer).tamper("model.model.layers.1.mlp.up_proj.weight")
    with pytest.raises(WeightMismatch, match=r"first model.layers.1.mlp.up_proj.weight;"):
        trainer.step()
    engine_of(trainer).tamper(None)
    trainer.sync_weights()
    agree(trainer)


@pytest.mark.parametrize(
    ("name", "how"),
    [("_TP1", signal.SIGKILL), ("_TP1", signal.SIGSTOP), ("", signal.SIGKILL)],
    ids=["device killed", "device stopped", "server killed"],
)
def test_a_lost_process_ends_all_and_the_step_is_sampled_by_others(
    trainer: AskedTrainer, name: str, how: signal.Signals
):
    (server,) = engine_of(trainer).server_pid()
    tree = [psutil.Process(server), *psutil.Process(server).children(recursive=True)]
    victim = next(one for one in tree if name in one.cmdline()[0])
    victim.send_signal(how)
    metrics, rollout = trainer.step()
    assert metrics["delta_log_prob_max"] < TOLERANCE
    assert not rollout.tensor("failed").any()
    assert engine_of(trainer).server_pid() != [server]
    assert not still_running([one.pid for one in tree])
    agree(trainer)
