"""Episodes of several seats: who answers, whose rows are trained, and what is said of faults."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rl_core.data_proto import DataProto
from rl_core.envs.registration import make
from rl_core.envs.seats import with_models
from rl_core.errors import EnvError
from rl_core.models.decoding.request import Request
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.engine import RolloutEngine
from schemas.sections.rollout import RolloutConfig
from tests.chat_server import Server
from tests.rollout.agents.episode_of import answer_of
from tests.rollout.agents.test_agents import rows
from tests.train.jobs import Setup, make_backend

TURNS = "tests.rollout.agents.players:by_turns"


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A player behind a server."""
    said = answer_of(lambda messages: f"after {len(messages)}")
    served = Server(lambda body: said(body) if body["model"] == "theirs" else (400, "no credit"))
    yield served
    served.close()


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path, server: Server) -> Iterator[RolloutEngine]:
    both = {"agent": TURNS, "seats": {"x": "policy", "o": "policy"}, "timeout_s": 20}
    elsewhere = {"url": server.url, "model": "theirs"}
    options: dict[str, dict[str, Any]] = {
        "both": both | {"evaluation_seats": {"o": "start"}},
        "served": both | {"seats": {"x": "policy", "o": elsewhere}},
        "refused": both | {"seats": {"x": "policy", "o": elsewhere | {"model": "other"}}},
    }
    backend = make_backend(RankInfo(0, 1, "cpu", 1), Setup(str(tiny_model_dir)))
    config = RolloutConfig(samples_per_prompt=2, max_new_tokens=6)
    made = RolloutEngine(backend, config, with_models(options, str(tiny_model_dir)), {}, 0)
    yield made
    made.agents.close()


def played(engine: RolloutEngine, name: str, *what: str) -> DataProto:
    batch = engine.rollout(rows(name, *what), 0)
    assert batch is not None
    return batch


def test_each_seat_of_the_policy_is_a_row_and_a_group_with_its_own_reward(
    engine: RolloutEngine,
) -> None:
    batch = played(engine, "both", "apart")
    assert not batch.tensor("failed").any(), batch.non_tensor_batch["error"]
    assert batch.non_tensor_batch["group_id"].tolist() == ["row-0/o"] * 2 + ["row-0/x"] * 2
    assert batch.tensor("rewards").tolist() == [-1.0, -1.0, 1.0, 1.0]
    # Each seat has a conversation of its own, in which the other's words are no reply.
    assert batch.tensor("num_turns").tolist() == [2, 2, 2, 2]
    metrics = batch.non_tensor_batch["env_metrics"]
    assert sorted(one.get("reward_o", 0.0) for one in metrics) == [-1.0, -1.0, 0.0, 0.0]
    shared = played(engine, "both", "together")
    assert shared.tensor("rewards").tolist() == [0.5] * 4


def test_a_frozen_seat_trains_nothing_and_answers_as_the_model_before_training(
    engine: RolloutEngine, tiny_model_dir: Path
) -> None:
    before = engine.evaluate(rows("both", "apart"), 6)
    assert before is not None and len(before) == 1
    assert before.non_tensor_batch["group_id"].tolist() == ["row-0"]
    assert before.tensor("rewards").tolist() == [1.0]
    start = engine.agents.opponent(str(tiny_model_dir))
    asked = [Request([5, 6, 7], 1, 6, seed=1)]

    def said() -> list[int]:
        (reply,) = start.answer([], asked, engine.sampling(6, 1.0))
        assert not isinstance(reply, str)
        return reply.token_ids

    first, policy = said(), engine.backend.policy
    with torch.no_grad():
        held = [one.clone() for one in policy.parameters()]
        for one in policy.parameters():
            one.mul_(-3)
        assert said() == first
        for one, was in zip(policy.parameters(), held, strict=True):
            one.copy_(was)


def test_a_seat_behind_a_server_is_asked_with_its_own_messages(
    engine: RolloutEngine, server: Server
) -> None:
    batch = played(engine, "served", "apart")
    assert not batch.tensor("failed").any(), batch.non_tensor_batch["error"]
    assert batch.non_tensor_batch["group_id"].tolist() == ["row-0"] * 2
    assert batch.tensor("rewards").tolist() == [1.0, 1.0]
    assert {one["model"] for one in server.requests} == {"theirs"}
    assert sorted(len(one["messages"]) for one in server.requests) == [2, 2, 4, 4]


def test_a_server_that_fails_is_no_loss_of_the_policy(engine: RolloutEngine) -> None:
    batch = played(engine, "refused", "forgiving")
    assert batch.tensor("failed").all()
    assert all("answered 400: " in error for error in batch.non_tensor_batch["error"])


def test_a_seat_that_was_never_asked_has_its_result_in_evaluations_alone(
    engine: RolloutEngine,
) -> None:
    batch = played(engine, "both", "o alone")
    assert batch.non_tensor_batch["group_id"].tolist() == ["row-0/o"] * 2
    evaluated = engine.evaluate(rows("both", "o alone"), 6)
    assert evaluated is not None and not evaluated.tensor("failed").any()
    assert evaluated.tensor("rewards").tolist() == [1.0]
    assert not evaluated.tensor("response_mask").any()


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("nobody", "there is no seat 'z'; the recipe's seats are x, o"),
        ("unknown reward", "a reward of 'z'; the recipe's seats are x, o"),
        ("missing reward", "no reward of the seat 'o', which the policy plays"),
        ("list", "a reward for each request; with seats it must be a number"),
    ],
)
def test_a_fault_with_seats_is_said(engine: RolloutEngine, what: str, error: str) -> None:
    batch = played(engine, "both", what)
    assert batch.tensor("failed").all()
    assert error in batch.non_tensor_batch["error"][0]


@pytest.mark.parametrize(
    ("seats", "evaluation", "error"),
    [
        ({"x": "start"}, {}, "one of them must be `policy`"),
        ({"x": "policy", "o": "policy"}, {}, "it must be one seat"),
        ({"x": "policy"}, {"o": "start"}, "there is no seat 'o'"),
        ({"x": "policy", "o": {"url": "there", "model": "m"}}, {}, "url"),
        ({"x y": "policy"}, {}, "letters, digits"),
    ],
)
def test_seats_that_do_not_fit_are_refused(seats: Any, evaluation: Any, error: str) -> None:
    with pytest.raises(EnvError, match=error):
        make("game", {"agent": TURNS, "seats": seats, "evaluation_seats": evaluation}, {})
