"""Rollouts with SGLang servers of somebody else: a whole job, and what a server may do wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from rl_core.errors import RecipeError, Unreachable, WorkerError
from rl_core.models.export.checksums import Checksum, checksum
from rl_core.rollout.servers.balancer import BalancedServers
from rl_core.rollout.servers.sglang import ServedSglang
from rl_core.rollout.vllm_process.server import Drawn, Names, Prompt
from rl_core.trainers.domains.text import TextTrainer
from schemas.sections.sampling import SamplingConfig
from tests.rollout.in_flight_parts import CHANGES, ROLLOUT, check_in_flight
from tests.rollout.server_parts import SPARE, check_steps, server_recipe
from tests.rollout.sglang_stand_in import SglangStandIn, sglang_stand_in
from tests.rollout.vllm_parts import CONTEXT, make_model

PROMPT = Prompt([5, 9, 30, 31, 8], num_replies=3, max_new_tokens=12, seed=2**61 + 5)


@pytest.fixture(scope="module")
def model_dir(tiny_model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tiny_model_dir, tmp_path_factory.mktemp("sglang") / "model")


@pytest.fixture
def server(model_dir: Path) -> Iterator[SglangStandIn]:
    with sglang_stand_in(model_dir, CONTEXT + SPARE) as server:
        yield server


class Asked:
    """One server behind a balancer, with weights to load."""

    def __init__(self, server: SglangStandIn, folder: Path) -> None:
        self.tensors = {
            name: one.contiguous()
            for name, one in server.model.state_dict().items()
            if name != "lm_head.weight"
        }
        self.sent = str(folder / "sent.safetensors")
        save_file(self.tensors, self.sent)
        served = ServedSglang(server.url, folder / "shared", {}, self.sent, CONTEXT, 10.0)
        self.balanced = BalancedServers([served])

    def load(self) -> None:
        save_file(self.tensors, self.sent)
        self.balanced.reload(self.sums(), "float32", "here")

    def sums(self) -> dict[Names, Checksum]:
        return {(name,): checksum(one) for name, one in self.tensors.items()}

    def ask(self, prompt: Prompt = PROMPT, temperature: float = 1.0, **choice: Any) -> list[Drawn]:
        self.balanced.begin()
        return self.balanced.generate([prompt], temperature, [1], SamplingConfig(**choice))


@pytest.fixture
def asked(server: SglangStandIn, tmp_path: Path) -> Iterator[Asked]:
    asked = Asked(server, tmp_path)
    asked.load()
    yield asked
    asked.balanced.close()


def test_siblings_differ_and_a_repeat_is_equal(asked: Asked):
    first, again = asked.ask(), asked.ask()
    assert first == again
    assert len({tuple(one.token_ids) for one in first}) == 3
    greedy = asked.ask(temperature=0.0)
    assert greedy == [greedy[0]] * 3


def test_a_reply_ends_at_the_run_s_tokens_also_at_its_limit(asked: Asked, server: SglangStandIn):
    whole = asked.ask(temperature=0.0)[0].token_ids
    end = whole[3]
    place = whole.index(end) + 1
    for limit in (place, 12):
        prompt = replace(PROMPT, max_new_tokens=limit)
        (one, *_) = asked.balanced.generate([prompt], 0.0, [end], SamplingConfig())
        assert (one.token_ids, one.ended, one.stopped) == (whole[:place], True, False)
    (cut, *_) = asked.balanced.generate([PROMPT], 0.0, [], SamplingConfig())
    assert (len(cut.token_ids), cut.ended) == (12, False)


def test_a_stop_string_ends_a_reply(asked: Asked, server: SglangStandIn):
    whole = asked.ask(temperature=0.0)[0].token_ids
    stop = server.tokenizer.decode(whole[4:6])
    (one, *_) = asked.ask(replace(PROMPT, stop=(stop,)), 0.0)
    assert one.stopped and not one.ended
    assert stop in server.tokenizer.decode(one.token_ids)


def test_a_token_that_ends_replies_to_the_server_alone_is_an_error(
    asked: Asked, server: SglangStandIn
):
    whole = asked.ask(temperature=0.0)[0].token_ids
    server.ends = {whole[2]}
    with pytest.raises(
        RecipeError, match=f"ended a reply at the token {whole[2]}, which ends none"
    ):
        asked.ask(temperature=0.0)


def test_a_reply_that_the_server_cuts_shorter_is_an_error(asked: Asked):
    prompt = replace(PROMPT, token_ids=[7] * 90, max_new_tokens=12)
    with pytest.raises(RecipeError, match=r"after 6 of 12 tokens: .*--context-length"):
        asked.ask(prompt, 0.0)


def test_a_request_that_is_given_up_by_the_server_takes_it_out(asked: Asked, server: SglangStandIn):
    server.gives_up = True
    with pytest.raises(Unreachable, match="gave a request up: Abort in waiting queue"):
        asked.ask()


def test_a_server_that_was_started_again_loads_the_run_s_weights(
    asked: Asked, server: SglangStandIn
):
    first = asked.ask()
    asked.tensors["model.layers.0.mlp.up_proj.weight"] *= -2
    asked.load()
    new = asked.ask()
    assert first != new
    server.start_again()
    assert asked.ask() == new
    assert server.num_loads == 3


def test_weights_that_were_not_taken_over_are_an_error(asked: Asked, server: SglangStandIn):
    asked.tensors["no.such.weight"] = torch.ones(2)
    with pytest.raises(
        WorkerError, match=r"update_weights_from_disk answered 400: .*no.such.weight"
    ):
        asked.load()


def test_a_server_that_keeps_no_label_of_its_weights_is_an_error(
    asked: Asked, server: SglangStandIn
):
    server.is_old = True
    with pytest.raises(RecipeError, match="does not name the weight_version"):
        asked.load()


def test_a_rollout_begins_once_the_server_has_ended_what_was_given_up(
    asked: Asked, server: SglangStandIn
):
    server.may_answer.clear()
    asked.balanced.put({1: replace(PROMPT, num_replies=1)}, 1.0, [1], SamplingConfig())
    while not server.num_running:
        time.sleep(0.01)
    flushed = server.num_flushes
    threading.Timer(0.3, server.may_answer.set).start()
    asked.balanced.advance([1])
    asked.balanced.begin()
    assert server.num_flushes == flushed + 1 and not server.num_running


@pytest.mark.parametrize("heeds", [True, False])
def test_a_server_that_ignores_seeds_is_named_once(
    server: SglangStandIn, tmp_path: Path, caplog: pytest.LogCaptureFixture, heeds: bool
):
    server.heeds_seeds = heeds
    asked = Asked(server, tmp_path)
    asked.load()
    asked.balanced.close()
    said = [one for one in caplog.messages if "--enable-deterministic-inference" in one]
    assert len(said) == (0 if heeds else 1)


def test_no_sglang_server_says_so(server: SglangStandIn, tmp_path: Path):
    class Other(ServedSglang):
        def state(self) -> str:
            return str(self.get("/no_such_endpoint"))

    served = Other(server.url, tmp_path / "shared", {}, "unused", CONTEXT, 10.0)
    with pytest.raises(RecipeError, match="kind: sglang needs an SGLang server"):
        served.state()
    served.close()


def test_a_penalty_that_sglang_counts_otherwise_is_refused():
    given = {"kind": "sglang", "urls": ["http://127.0.0.1:9"], "folder": "unused"}
    with pytest.raises(
        ValidationError, match="SGLang counts tokens of the reply, training those of the prompt"
    ):
        server_recipe(Path("unused"), given, repetition_penalty=1.1)


def test_what_only_vllm_has_is_refused():
    given = {"kind": "sglang", "urls": ["http://127.0.0.1:9"], "folder": "unused"}
    with pytest.raises(ValidationError, match="with kind: sglang leave it out"):
        server_recipe(Path("unused"), given | {"reload": "reload_on_cpu"})


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_each_step_samples_with_the_weights_of_the_one_before(
    server: SglangStandIn, model_dir: Path, tmp_path: Path
):
    given = {"kind": "sglang", "urls": [server.url], "folder": str(tmp_path / "weights")}
    weights = check_steps(server_recipe(model_dir, given), 2)
    held = server.model.state_dict()
    for name, one in weights.items():
        assert torch.equal(held[name.removeprefix("model.")], one), name
    assert server.num_loads == 3


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_replies_go_on_with_newer_weights(server: SglangStandIn, model_dir: Path, tmp_path: Path):
    given = {"kind": "sglang", "urls": [server.url], "folder": str(tmp_path / "weights")}
    settings = server_recipe(model_dir, given, changes=CHANGES, **ROLLOUT)
    check_in_flight(TextTrainer, settings, tmp_path)
