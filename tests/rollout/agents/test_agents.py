"""Rows that agents play: what is captured of their requests, and what their faults do."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rl_core.data_proto import DataProto
from rl_core.envs.registration import make
from rl_core.errors import EnvError
from rl_core.models.decoding.request import Reply, Request
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.agents import play as play_module
from rl_core.rollout.engine import RolloutEngine
from rl_core.trainers.track import prompt_batch
from schemas.sections.rollout import RolloutConfig
from tests.serving.fuzzing import SCHEMATHESIS
from tests.train.jobs import Setup, make_backend

PLAYERS = "tests.rollout.agents.players"
OPTIONS: dict[str, dict[str, Any]] = {
    name: {"agent": f"{PLAYERS}:{name}", "timeout_s": 20, "concurrency": 64}
    for name in ("three_turns", "forgetful", "conversation", "hasty", "moody", "idle")
}
OPTIONS["own_rewards"] = OPTIONS["forgetful"] | {"share_reward": False}
OPTIONS["moody"] |= {"timeout_s": 5}
OPTIONS["fuzzer"] = {"agent": f"{PLAYERS}:fuzzer", "timeout_s": 400, "concurrency": 1}


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def new_engine(tiny_model_dir: Path) -> Iterator[Callable[..., RolloutEngine]]:
    engines = []

    def made(exact: bool = False, **config: Any) -> RolloutEngine:
        backend = make_backend(RankInfo(0, 1, "cpu", 1), Setup(str(tiny_model_dir)))
        if exact:
            backend.policy.make_exact()
        config = {"samples_per_prompt": 2, "max_new_tokens": 6} | config
        engine = RolloutEngine(backend, RolloutConfig(**config), OPTIONS, {}, 0)
        engines.append(engine)
        return engine

    yield made
    for engine in engines:
        engine.agents.close()


@pytest.fixture(scope="module")
def engine(new_engine: Callable[..., RolloutEngine]) -> RolloutEngine:
    return new_engine()


def rows(name: str, *truths: Any) -> DataProto:
    said = [{"role": "user", "content": "hello"}]
    return prompt_batch(
        [
            {
                "uid": f"row-{number}",
                "prompt": said,
                "env_class": name,
                "env_extras": {"reward_spec": {"ground_truth": truth}},
            }
            for number, truth in enumerate(truths)
        ]
    )


def spoken(batch: DataProto, row: int) -> tuple[list[int], list[float]]:
    """The trained tokens of a row, and their log-probabilities."""
    mask = batch.tensor("response_mask")[row].bool()
    tokens = batch.tensor("input_ids")[row, -len(mask) :]
    return tokens[mask].tolist(), batch.tensor("rollout_log_probs")[row][mask].tolist()


def test_a_row_has_the_very_tokens_and_log_probabilities_that_were_decoded(
    engine: RolloutEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[tuple[Request, Reply]] = []
    run = play_module.play_agents

    def listened(items: Any, num: int, stage: Any, generate: Any, *rest: Any, **named: Any) -> Any:
        def generating(requests: list[Request]) -> list[Reply]:
            replies = generate(requests)
            heard.extend(zip(requests, replies, strict=True))
            return replies

        return run(items, num, stage, generating, *rest, **named)

    monkeypatch.setattr("rl_core.rollout.engine.play_agents", listened)
    batch = engine.rollout(rows("three_turns", 1, 2), 0)
    assert batch is not None and len(batch) == 4 and not batch.tensor("failed").any()
    assert batch.tensor("num_turns").tolist() == [3] * 4
    assert batch.tensor("rewards").tolist() == [1.0] * 4
    assert batch.non_tensor_batch["group_id"].tolist() == ["row-0", "row-0", "row-1", "row-1"]
    metrics = [one["stitched_requests"] for one in batch.non_tensor_batch["env_metrics"]]
    assert metrics == [2.0] * 4
    for row in range(4):
        tokens, log_probs = spoken(batch, row)
        used = batch.tensor("attention_mask")[row].bool()
        whole = batch.tensor("input_ids")[row][used].tolist()
        own = sorted(
            (
                (a, b)
                for a, b in heard
                if whole[: len(a.token_ids)] == a.token_ids
                and whole[len(a.token_ids) :][: len(b.token_ids)] == b.token_ids
            ),
            key=lambda one: len(one[0].token_ids),
        )[-3:]
        assert tokens == [token for _, reply in own for token in reply.token_ids]
        exactly = torch.tensor([one for _, reply in own for one in reply.log_probs])
        assert torch.equal(torch.tensor(log_probs), exactly)


def test_a_shortened_history_begins_another_row_of_the_same_group(engine: RolloutEngine) -> None:
    batch = engine.rollout(rows("forgetful", 1), 0)
    assert batch is not None and len(batch) == 4
    assert batch.tensor("num_turns").tolist() == [2, 1, 2, 1]
    assert batch.tensor("rewards").tolist() == [7.0] * 4
    assert set(batch.non_tensor_batch["group_id"]) == {"row-0"}
    assert len(set(batch.non_tensor_batch["sample_id"])) == 4
    own = engine.rollout(rows("own_rewards", 1), 0)
    assert own is not None
    assert own.tensor("rewards").tolist() == [3.0, 4.0] * 2
    evaluated = engine.evaluate(rows("forgetful", 1), 6)
    assert evaluated is not None and len(evaluated) == 1


def test_returned_messages_are_what_scorers_read(engine: RolloutEngine) -> None:
    batch = engine.rollout(rows("conversation", 1), 0)
    assert batch is not None
    assert batch.non_tensor_batch["response"].tolist() == ["the answer is 42"] * 2
    assert batch.tensor("rewards").tolist() == [0.0, 0.0]


def test_a_faulty_agent_fails_its_own_row_with_its_own_line(engine: RolloutEngine) -> None:
    faults = ("raises", "dies", "hangs", "words", "fine")
    batch = engine.rollout(rows("moody", *faults), 0)
    assert batch is not None
    assert batch.tensor("failed").tolist() == [True] * 8 + [False] * 2
    assert not batch.tensor("response_mask")[:8].any()
    errors = batch.non_tensor_batch["error"][::2].tolist()
    assert "players.py:" in errors[0] and errors[0].endswith("RuntimeError: out of mind")
    assert "exit code 7" in errors[1]
    assert "5 s (timeout_s)" in errors[2]
    assert "it returned 'good'" in errors[3]
    assert errors[4] is None
    assert batch.non_tensor_batch["timed_out"][::2].tolist() == [False, False, True, False, False]
    asked_nothing = engine.rollout(rows("idle", 1), 0)
    assert asked_nothing is not None
    assert "without a reply" in asked_nothing.non_tensor_batch["error"][0]


def test_64_episodes_at_once_survive_clients_that_leave(engine: RolloutEngine) -> None:
    batch = engine.rollout(rows("hasty", *range(32)), 0)
    assert batch is not None and len(batch) == 64
    assert not batch.tensor("failed").any(), batch.non_tensor_batch["error"]
    assert batch.tensor("num_turns").max() == 1 or len(batch) > 64


def test_replies_of_an_exact_policy_do_not_depend_on_the_order_of_arrival(
    new_engine: Callable[..., RolloutEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = new_engine(exact=True)
    together = engine.rollout(rows("three_turns", 1, 2), 0)
    run = play_module.play_agents

    def one_by_one(
        items: Any, num: int, stage: Any, generate: Any, limits: Any, *rest: Any, **named: Any
    ) -> Any:
        return run(items, num, stage, generate, replace(limits, max_batch_size=1), *rest, **named)

    monkeypatch.setattr("rl_core.rollout.engine.play_agents", one_by_one)
    apart = engine.rollout(rows("three_turns", 1, 2), 0)
    assert together is not None and apart is not None
    for name in ("input_ids", "rollout_log_probs", "response_mask"):
        assert torch.equal(together.tensor(name), apart.tensor(name))


@pytest.mark.parametrize(
    ("agent", "what"),
    [
        ("nowhere", "my_pkg.my_module:play"),
        (f"{PLAYERS}:nobody", "has no attribute 'nobody'"),
        ("no_such_package:play", "No module named 'no_such_package'"),
    ],
)
def test_an_agent_that_is_not_there_is_said_in_a_sentence(agent: str, what: str) -> None:
    with pytest.raises(EnvError, match=what):
        make("mine", {"agent": agent}, {})


@pytest.mark.skipif(
    not SCHEMATHESIS.is_file(), reason="`make .venv-schemathesis/.installed` builds what this needs"
)
def test_no_request_of_an_agent_is_answered_with_a_fault_of_the_server(
    new_engine: Callable[..., RolloutEngine],
) -> None:
    played = new_engine(samples_per_prompt=1, max_new_tokens=2).rollout(rows("fuzzer", "any"), 0)
    # Most requests begin a row of their own.
    assert played is not None and set(played.tensor("rewards").tolist()) == {1.0}
    assert not played.tensor("failed").any()
