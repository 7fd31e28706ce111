"""Environments work beside the decoding and beside each other; what one of them does wrong is its
own row's matter."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput, register
from rl_core.envs import registration as registration_module
from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.decoding.request import Reply, Request, StopReason
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes import env_calls
from rl_core.rollout.episodes.env_calls import EnvCall
from rl_core.rollout.episodes.episode import Episode
from rl_core.rollout.episodes.loop import run_episodes
from schemas.sections.rollout import EpisodeConfig

EOS = "<|im_end|>"
FOREVER_S = 60.0


def answered(done: bool, reward: float = 1.0) -> BaseTextEnvStepOutput:
    observations = [] if done else [{"role": "user", "content": "go on"}]
    return BaseTextEnvStepOutput(observations=observations, reward=reward, done=done, metadata={})


class TwoTurns(BaseTextEnv):
    """Pays 1 for the first turn and 2 for the second."""

    def step(self, action: str) -> Any:
        self.turns += 1
        return answered(self.turns == 2, float(self.turns))


class Personal(TwoTurns):
    """Every instance asks something else."""

    count = 0

    def init(self, prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        Personal.count += 1
        return [{"role": "user", "content": "abcdefgh"[Personal.count - 1] * Personal.count}], {}


class Together(TwoTurns):
    """Answers only when all of its kind are asked at the same time."""

    barrier = threading.Barrier(1)

    def step(self, action: str) -> Any:
        self.barrier.wait(10)
        return answered(True)


class AsyncTogether(TwoTurns):
    """The same with coroutines, on one event loop."""

    arrived = 0
    wanted = 0

    async def step(self, action: str) -> BaseTextEnvStepOutput:
        type(self).arrived += 1
        while self.arrived < self.wanted:
            await asyncio.sleep(0.001)
        return answered(True)


class Waiting(TwoTurns):
    """Answers when told to."""

    go_on = threading.Event()

    def step(self, action: str) -> Any:
        if not self.go_on.wait(FOREVER_S):
            raise TimeoutError("nobody said go on")
        return super().step(action)


class Sleeping(TwoTurns):
    """Never answers in time."""

    def step(self, action: str) -> Any:
        self.stopped = threading.Event()
        self.stopped.wait(FOREVER_S)
        return answered(True)

    def close(self) -> None:
        self.stopped.set()


class AsyncSleeping(TwoTurns):
    """Never answers, and does not let itself be cancelled."""

    ended: threading.Event

    async def step(self, action: str) -> BaseTextEnvStepOutput:
        for _ in range(2):
            try:
                await asyncio.sleep(FOREVER_S)
            except asyncio.CancelledError:
                continue
        return answered(True)


class Blocking(TwoTurns):
    """A coroutine that never gives the event loop back."""

    stopped = threading.Event()

    async def step(self, action: str) -> BaseTextEnvStepOutput:
        self.stopped.wait(FOREVER_S)
        return answered(True)


class Crowd(TwoTurns):
    """Says how many of it work at once, and wants two at most."""

    max_concurrent_steps = 2
    lock = threading.Lock()
    now = 0
    most = 0

    def step(self, action: str) -> Any:
        with self.lock:
            Crowd.now += 1
            Crowd.most = max(Crowd.most, Crowd.now)
        time.sleep(0.02)
        with self.lock:
            Crowd.now -= 1
        return answered(True)


class SlowToClose(TwoTurns):
    """Good verdict, bad end."""

    def close(self) -> None:
        raise OSError("the socket would not go away")


class Measuring(TwoTurns):
    """Reports what it measured."""

    def get_metrics(self) -> dict[str, float]:
        return {"turns": self.turns}


class NotANumber(TwoTurns):
    def step(self, action: str) -> Any:
        return answered(True, float("nan"))


class NoAnswer(TwoTurns):
    def step(self, action: str) -> Any:
        return None


class Leaving(TwoTurns):
    def step(self, action: str) -> Any:
        raise SystemExit(3)


ENVIRONMENTS: dict[str, type[BaseTextEnv]] = {
    "two": TwoTurns,
    "personal": Personal,
    "together": Together,
    "async_together": AsyncTogether,
    "waiting": Waiting,
    "sleeping": Sleeping,
    "async_sleeping": AsyncSleeping,
    "blocking": Blocking,
    "crowd": Crowd,
    "slow_to_close": SlowToClose,
    "measuring": Measuring,
    "nan": NotANumber,
    "none": NoAnswer,
    "leaving": Leaving,
}


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registration_module, "_specs", {})
    for env_id, cls in ENVIRONMENTS.items():
        register(env_id, cls)
    Personal.count = AsyncTogether.arrived = Crowd.most = 0
    Waiting.go_on.clear()
    Blocking.stopped.clear()
    yield
    Waiting.go_on.set()
    Blocking.stopped.set()


@pytest.fixture(scope="module")
def chat(tiny_model_dir: Path) -> ChatFormat:
    return ChatFormat(load_tokenizer(str(tiny_model_dir)), {})


def items(*env_classes: str) -> list[dict[str, Any]]:
    return [
        {
            "uid": str(row),
            "prompt": [{"role": "user", "content": f"row {row}"}],
            "env_class": env_class,
            "env_extras": {"reward_spec": {"ground_truth": "1"}},
        }
        for row, env_class in enumerate(env_classes)
    ]


class Policy:
    """Says `ok` to everything, in as many tokens as there is room for."""

    def __init__(self, chat: ChatFormat, text: str = f"ok{EOS}") -> None:
        self.ids = chat.tokenizer.encode(text)
        self.asked: list[list[Request]] = []

    def __call__(self, requests: list[Request]) -> list[Reply]:
        self.asked.append(requests)
        replies = []
        for request in requests:
            ids = self.ids[: request.room]
            reason = StopReason.EOS if ids == self.ids else StopReason.LENGTH
            replies += [
                Reply(list(ids), [-1.0] * len(ids), reason) for _ in range(request.num_replies)
            ]
        return replies


def play(
    chat: ChatFormat,
    *env_classes: str,
    siblings: int = 1,
    limit: int = 512,
    batch: int = 64,
    **config: float,
):
    policy = Policy(chat)
    settings = EpisodeConfig(**config)  # type: ignore[arg-type]
    return run_episodes(
        items(*env_classes), siblings, chat, policy, {}, limit, batch, settings
    ), policy


def test_siblings_whose_environments_rewrite_the_prompt_each_see_their_own(chat: ChatFormat):
    episodes, policy = play(chat, "personal", siblings=3)
    prompts = sorted(chat.decode(episode.prompt_ids) for episode in episodes)
    assert len(set(prompts)) == 3
    assert [request.token_ids for request in policy.asked[0]] == [
        episode.prompt_ids for episode in episodes
    ]
    assert [request.num_replies for request in policy.asked[0]] == [1, 1, 1]


def test_turn_rewards_lie_on_the_last_token_of_their_own_turn(chat: ChatFormat):
    (episode,), policy = play(chat, "two")
    length = len(policy.ids)
    assert episode.mask[:length] == [1] * length == episode.mask[-length:]
    expected = [0.0] * len(episode.mask)
    expected[length - 1], expected[-1] = 1.0, 2.0
    assert episode.token_rewards == expected
    assert episode.reward == 3.0


def test_environments_step_at_the_same_time(chat: ChatFormat):
    Together.barrier = threading.Barrier(8)
    AsyncTogether.wanted = 8
    episodes, policy = play(chat, *["together", "async_together"] * 8)
    assert [episode.error for episode in episodes] == [None] * 16
    assert len(policy.asked) == 1


def test_a_limit_on_environments_at_work_is_kept(chat: ChatFormat):
    Together.barrier = threading.Barrier(2)
    episodes, _ = play(chat, *["crowd"] * 6, "together", "together")
    assert [episode.error for episode in episodes] == [None] * 8
    assert Crowd.most == 2


def test_the_others_decode_on_while_one_environment_works(chat: ChatFormat):
    class Releasing(Policy):
        def __call__(self, requests: list[Request]) -> list[Reply]:
            replies = super().__call__(requests)
            if len(self.asked) == 2:
                Waiting.go_on.set()
            return replies

    policy = Releasing(chat)
    episodes = run_episodes(
        items("waiting", "two"), 1, chat, policy, {}, 512, 64, EpisodeConfig(patience_s=0.01)
    )
    assert [episode.reward for episode in episodes] == [3.0, 3.0]
    # Waiting for its first answer the slow row has no second turn: the fast one's comes alone.
    assert [len(requests) for requests in policy.asked] == [2, 1, 1]


def test_quick_environments_are_waited_for_so_that_batches_stay_whole(chat: ChatFormat):
    episodes, policy = play(chat, *["two"] * 5, patience_s=30)
    assert [len(requests) for requests in policy.asked] == [5, 5]
    assert all(episode.reward == 3.0 for episode in episodes)


def test_no_more_rows_are_decoded_at_once_than_allowed(chat: ChatFormat):
    episodes, policy = play(chat, *["two"] * 3, siblings=4, batch=5)
    assert max(sum(request.num_replies for request in requests) for requests in policy.asked) == 5
    assert [episode.reward for episode in episodes] == [3.0] * 12
    assert [episode.group for episode in episodes] == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize("env_class", ["sleeping", "async_sleeping"])
def test_a_step_beyond_its_deadline_fails_its_row(chat: ChatFormat, env_class: str):
    (slow, quick), _ = play(chat, env_class, "two", step_timeout_s=0.2)
    assert (slow.error, slow.failed_call, slow.timed_out) == (
        "step took longer than 0.2 s",
        EnvCall.STEP,
        True,
    )
    assert (slow.has_verdict, slow.stop_reason) == (False, StopReason.FAILED)
    assert (quick.error, quick.reward) == (None, 3.0)


def test_an_episode_has_a_deadline_of_its_own(chat: ChatFormat):
    (slow, quick), _ = play(chat, "sleeping", "two", episode_timeout_s=0.2)
    assert slow.timed_out
    assert quick.error is None


def test_a_coroutine_that_blocks_the_loop_ends_nothing_but_what_shares_the_loop(
    chat: ChatFormat, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(env_calls, "BLOCKED_GRACE_S", 0.2)
    (episode,), _ = play(chat, "blocking", step_timeout_s=0.2)
    assert episode.timed_out
    assert "blocks the event loop" in str(episode.error)


@pytest.mark.parametrize(
    ("env_class", "reason"),
    [
        ("nan", "the reward is nan, not a finite number"),
        ("none", "TypeError"),
        ("leaving", "SystemExit: 3"),
        ("no_such_environment", "unknown environment 'no_such_environment'"),
    ],
)
def test_whatever_an_environment_does_wrong_stays_in_its_row(
    chat: ChatFormat, env_class: str, reason: str
):
    (wrong, right), _ = play(chat, env_class, "two")
    assert reason in str(wrong.error)
    assert (wrong.has_verdict, wrong.reward) == (False, 0.0)
    assert (right.error, right.reward) == (None, 3.0)


def test_a_failure_to_close_is_recorded_and_leaves_the_verdict(chat: ChatFormat):
    (bad, good), _ = play(chat, "slow_to_close", "two")
    assert str(bad.error).startswith("OSError: the socket would not go away (")
    assert bad.failed_call is EnvCall.CLOSE
    assert (bad.has_verdict, bad.reward, bad.stop_reason) == (True, 3.0, StopReason.EOS)
    assert good.error is None


def test_a_reply_cut_off_by_the_context_limit_still_gets_its_verdict(chat: ChatFormat):
    (whole,), policy = play(chat, "two")
    (first,), _ = play(chat, "two", limit=len(whole.prompt_ids) + 2)
    assert first.response_ids == policy.ids[:2]
    assert (first.stop_reason, first.reward, first.num_turns) == (StopReason.CONTEXT, 1.0, 1)
    (second,), _ = play(chat, "two", limit=len(whole.prompt_ids) + len(whole.response_ids) - 1)
    assert second.response_ids == whole.response_ids[:-1]
    assert (second.stop_reason, second.reward, second.num_turns) == (StopReason.CONTEXT, 3.0, 2)


def test_a_prompt_that_leaves_no_room_fails_its_row(chat: ChatFormat):
    (whole,), _ = play(chat, "two")
    (episode,), policy = play(chat, "two", limit=len(whole.prompt_ids))
    assert "leaves no room for a reply; raise rollout.max_context_length" in str(episode.error)
    assert policy.asked == []


def test_what_environments_measure_is_kept(chat: ChatFormat):
    (episode, _), _ = play(chat, "measuring", "two")
    assert episode.env_metrics == {"turns": 2.0}


def test_no_thread_stays_behind(chat: ChatFormat):
    # Threads, not their number: one that an earlier test left may end meanwhile.
    before = set(threading.enumerate())
    episodes: list[Episode] = play(chat, *["two"] * 4)[0]
    assert len(episodes) == 4
    deadline = time.monotonic() + 5
    while (new := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not new
