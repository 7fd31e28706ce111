"""Requests of agents that are answered one by one: what joins what, and that nothing else
changes."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from flows.dry_run import check_turns
from rl_core.data_proto import DataProto
from rl_core.errors import ModelError, RecipeError
from rl_core.models.decoding.continuous.arrivals import Arrival, LocalAnswers
from rl_core.models.decoding.request import Reply, Request
from rl_core.ranks.rank_info import RankInfo
from rl_core.rollout.agents.endpoint import ReplyStream
from rl_core.rollout.engine import RolloutEngine
from rl_core.runtime.home import Home
from schemas.recipe import Recipe
from schemas.sections.rollout import RolloutConfig
from schemas.sections.sampling import SamplingConfig
from tasks.prepare_cache import _prepare_prompts
from tests.rollout.agents.test_agents import OPTIONS, PLAYERS, rows
from tests.train.jobs import Setup, make_backend

Engines = Callable[..., RolloutEngine]
LONG = 200
"""Tokens of a long reply; nothing ends it before."""
TALKER = {"agent": f"{PLAYERS}:talker", "timeout_s": 20, "concurrency": 64}
ENVIRONMENTS = OPTIONS | {"talker": TALKER}


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    """A group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def new_engine(tiny_model_dir: Path) -> Iterator[Engines]:
    engines = []

    def made(exact: bool = False, continuous: bool = True, **config: Any) -> RolloutEngine:
        backend = make_backend(RankInfo(0, 1, "cpu", 1), Setup(str(tiny_model_dir)))
        if exact:
            backend.policy.make_exact()
        given = {"samples_per_prompt": 2, "max_new_tokens": 6} | config
        given["episodes"] = {"continuous": continuous}
        engines.append(RolloutEngine(backend, RolloutConfig(**given), ENVIRONMENTS, {}, 0))
        return engines[-1]

    yield made
    for engine in engines:
        engine.agents.close()


def played(engine: RolloutEngine, name: str, *truths: Any) -> DataProto:
    batch = engine.rollout(rows(name, *truths), 0)
    assert batch is not None
    return batch


@pytest.mark.slow
def test_a_short_episode_does_not_wait_for_a_long_reply(
    new_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    delivered: list[int] = []
    deliver = ReplyStream.deliver

    def noted(stream: ReplyStream, reply: Reply) -> None:
        delivered.append(len(reply.token_ids))
        deliver(stream, reply)

    step = LocalAnswers.step

    def slow_alone(answers: LocalAnswers) -> list[tuple[Arrival, Reply]]:
        if answers.num_running == 1:
            time.sleep(0.01)
        return step(answers)

    monkeypatch.setattr(ReplyStream, "deliver", noted)
    monkeypatch.setattr(LocalAnswers, "step", slow_alone)
    options = {"samples_per_prompt": 1, "max_new_tokens": LONG, "temperature": 1.0}
    options |= {"min_new_tokens": LONG}
    batch = played(new_engine(**options), "talker", LONG, 1)
    assert not batch.tensor("failed").any()
    assert delivered == [1, 1, 1, 1, LONG]
    delivered.clear()
    played(new_engine(continuous=False, **options), "talker", LONG, 1)
    assert delivered == [LONG, 1, 1, 1, 1]


def test_an_exact_policy_gives_the_same_rows_as_together(new_engine: Engines) -> None:
    together = played(new_engine(exact=True, continuous=False), "three_turns", 1, 2)
    for most in (256, 3):
        apart = played(new_engine(exact=True, max_batch_size=most), "three_turns", 1, 2)
        for name in ("input_ids", "rollout_log_probs", "response_mask"):
            assert torch.equal(together.tensor(name), apart.tensor(name))


def test_a_rollout_whose_choice_is_restricted_says_what_could_be_drawn(new_engine: Engines) -> None:
    together = played(new_engine(exact=True, continuous=False, top_k=3), "three_turns", 1)
    apart = played(new_engine(exact=True, top_k=3), "three_turns", 1)
    assert torch.equal(together.tensor("input_ids"), apart.tensor("input_ids"))
    pairs = zip(
        together.non_tensor_batch["support"], apart.non_tensor_batch["support"], strict=True
    )
    assert all(one is not None and repr(one) == repr(other) for one, other in pairs)


def test_what_nobody_waits_for_leaves_the_batch(new_engine: Engines) -> None:
    engine, wanted = new_engine(), {0, 1, 2}
    sampling = engine.sampling(4, 1.0, SamplingConfig(min_new_tokens=4))
    arrivals = [
        Arrival(Request([5, 6], 1, 4, seed=number), lambda number=number: number in wanted)
        for number in range(3)
    ]
    with engine.decoding(sampling, torch.Generator()) as sampler:
        alone = sampler.answers()
        alone.put(arrivals)
        assert [alone.step(), alone.num_running] == [[], 3]
        wanted.remove(1)
        assert [alone.step(), alone.num_running] == [[], 2]
        ended = [one for _ in range(2) for one in alone.step()]
    assert [arrival for arrival, _ in ended] == [arrivals[0], arrivals[2]]
    assert [len(reply.token_ids) for _, reply in ended] == [4, 4]


def test_64_episodes_at_once_survive_clients_that_leave(new_engine: Engines) -> None:
    batch = played(new_engine(max_batch_size=16), "hasty", *range(32))
    assert len(batch) == 64 and not batch.tensor("failed").any(), batch.non_tensor_batch["error"]


@pytest.mark.slow
def test_faults_stay_with_their_rows(new_engine: Engines) -> None:
    batch = played(new_engine(), "moody", "raises", "dies", "hangs", "words", "fine")
    assert batch.tensor("failed").tolist() == [True] * 8 + [False] * 2


def test_a_model_that_fails_ends_the_rollout(
    new_engine: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = new_engine()

    def fails(*_: Any) -> Any:
        raise ModelError("no logits")

    monkeypatch.setattr(engine.backend.policy, "logits", fails)
    with pytest.raises(ModelError, match="no logits"):
        played(engine, "three_turns", 1)


def recipe(**blocks: Any) -> Recipe:
    given = {
        "name": "talk",
        "model": {"path": "nowhere"},
        "data": {"train": ["rows.jsonl"], "eval": ["held_out.jsonl"]},
        "rollout": {"episodes": {"continuous": True}} | blocks.pop("rollout", {}),
    }
    return Recipe.model_validate(given | blocks)


@pytest.mark.parametrize(
    ("blocks", "other"),
    [
        ({"placement": {"num_devices": 2, "tp_size": 2}}, "placement.tp_size"),
        ({"rollout": {"router_replay": True}}, "rollout.router_replay"),
    ],
)
def test_what_does_not_go_with_it_is_refused(blocks: dict[str, Any], other: str) -> None:
    with pytest.raises(ValueError, match=rf"episodes.continuous: not with {other}: .*leave out"):
        recipe(**blocks)


def test_without_an_agent_it_is_refused_in_the_plan_and_in_the_preparation(tmp_path: Path) -> None:
    settings = recipe()
    message = r"none of the environments \(none\) is one; leave it out"
    with pytest.raises(RecipeError, match=message):
        check_turns(settings, Home(tmp_path))
    with pytest.raises(RecipeError, match=message):
        _prepare_prompts(settings, Home(tmp_path))
