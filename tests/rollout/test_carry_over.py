"""Groups that a step leaves unfinished go on in the next one: none is lost, each is sampled once,
and a resumed run repeats it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from rl_core.algorithms import algorithms
from rl_core.algorithms.requirements.trainers import check_serves_tokens
from rl_core.envs import BaseTextEnv, BaseTextEnvStepOutput
from rl_core.errors import RecipeError
from rl_core.models.chat.tokenizer import load_tokenizer
from rl_core.models.decoding.request import Reply, Request, StopReason
from rl_core.rollout.chat.text import ChatFormat
from rl_core.rollout.episodes.episode import Episode
from rl_core.rollout.episodes.loop import run_episodes
from rl_core.rollout.episodes.unfinished import Begun, Unfinished
from rl_core.train.weights.order import TOKEN_VERSIONS
from rl_core.trainers.domains.text import TextTrainer
from rl_core.trainers.step_prompts import StepPrompts
from schemas.recipe import Recipe
from tests.rollout.built import built
from tests.rollout.test_ahead import CORRECTED, EXACT, IN_FLOAT32
from tests.rollout.vowels import ITEMS, NUM_PROMPTS, NUM_SIBLINGS, recipe

HERE = "tests.rollout.test_carry_over"
STEPS, MOST = 3, 24


class Asking(BaseTextEnv):
    """Asks what the row says, or something else each time."""

    num_made = 0

    def init(self, prompt: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        Asking.num_made += 1
        if prompt[0]["content"] == "fickle":
            return [{"role": "user", "content": f"fickle {Asking.num_made}"}], {}
        return prompt, {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(observations=[], reward=1.0, done=True, metadata={})


def items(*texts: str) -> list[Any]:
    return [
        {
            "uid": text,
            "prompt": [{"role": "user", "content": text}],
            "env_class": f"{HERE}:Asking",
            "env_extras": {"reward_spec": {"ground_truth": ""}},
        }
        for text in texts
    ]


class Replies:
    """Replies of two tokens a call; those of `slow` texts need another call."""

    def __init__(self, chat: ChatFormat, slow: Sequence[str]) -> None:
        self.chat, self.slow = chat, slow
        self.asked: list[list[Request]] = []
        self.wanted: list[int | None] = []

    def __call__(self, requests: list[Request], enough: int | None = None) -> list[Reply]:
        self.asked.append(requests)
        self.wanted.append(enough)
        replies = []
        for request in requests:
            text = self.chat.tokenizer.decode(request.token_ids)
            waits = request.begun is None and any(one in text for one in self.slow)
            before = [] if request.begun is None else request.begun.token_ids
            # The second sibling of a slow group ends in time.
            reasons = [StopReason.GIVEN_UP if waits else StopReason.EOS, StopReason.EOS]
            for reason in reasons[: request.num_replies]:
                replies.append(Reply([*before, 5, 6], [-1.0] * (len(before) + 2), reason))
        return replies


def played(
    model_dir: Path,
    texts: Sequence[str],
    slow: Sequence[str],
    num_kept: int,
    begun: Sequence[Unfinished | None] = (),
    most_carried: int = 1,
) -> tuple[list[Episode], Replies]:
    chat = ChatFormat(load_tokenizer(str(model_dir)), {})
    replies = Replies(chat, slow)
    given = items(*texts), 2, chat, replies, {}, 512
    found = run_episodes(*given, num_kept=num_kept, begun=begun, most_carried=most_carried)
    return found, replies


def left(episodes: Sequence[Episode], times: int = 1) -> Unfinished:
    assert all(one.given_up for one in episodes)
    return Unfinished("", times, tuple(one.begun for one in episodes))


def test_only_what_has_not_ended_is_sampled_again(tiny_model_dir: Path) -> None:
    first, _ = played(tiny_model_dir, ("a1", "b2"), ("b2",), 1)
    kept = left(first[2:])
    assert [one is not None and one.has_ended for one in kept.begun] == [False, True]
    second, asked = played(tiny_model_dir, ("b2", "c3"), ("c3",), 1, [kept, None])
    assert [one.given_up for one in second] == [False, False, True, True]
    assert [len(one.response_ids) for one in second[:2]] == [4, 2]
    (requests,) = asked.asked
    assert [one.num_replies for one in requests] == [1, 2], "one sample had ended"
    assert requests[0].begun is not None
    assert [one.is_awaited for one in requests] == [True, False]


def test_a_group_that_had_ended_and_was_not_needed_is_the_first_to_be_kept(
    tiny_model_dir: Path,
) -> None:
    first, _ = played(tiny_model_dir, ("a1", "b2"), (), 1)
    kept = left(first[2:])
    assert all(one is not None and one.has_ended for one in kept.begun)
    second, asked = played(tiny_model_dir, ("b2", "c3", "d4"), (), 2, [kept, None, None])
    assert [one.given_up for one in second[::2]] == [False, False, True]
    assert [one.group for requests in asked.asked for one in requests] == [1, 2]
    assert asked.wanted == [1]


def test_an_environment_that_asks_something_else_fails_its_row(tiny_model_dir: Path) -> None:
    first, _ = played(tiny_model_dir, ("a1", "fickle"), ("fickle",), 1)
    second, _ = played(tiny_model_dir, ("fickle", "b2"), (), 1, [left(first[2:]), None])
    assert not any(one.given_up for one in second[:2]), "an awaited group is kept"
    for one in second[:2]:
        assert one.error is not None and "set rollout.carry_over: 0" in one.error
        assert not one.has_verdict


def test_what_had_ended_is_not_gone_on_with_where_all_are_awaited(tiny_model_dir: Path) -> None:
    first, _ = played(tiny_model_dir, ("a1", "b2"), (), 1)
    second, asked = played(tiny_model_dir, ("b2", "c3"), (), 2, [left(first[2:]), None])
    assert [len(one.response_ids) for one in second] == [2, 2, 2, 2]
    assert [one.group for requests in asked.asked for one in requests] == [1]


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
def test_a_greedy_baseline_begins_anew(tiny_model_dir: Path) -> None:
    still = {"learning_rate": 1e-12}
    settings = racing(tiny_model_dir, algorithm=CORRECTED | {"name": "remax"}, optimizer=still)
    rows: list[Any] = list(ITEMS)
    with built(TextTrainer(settings, settings.model.path, rows)) as trainer:
        greedy = trainer.evaluate(rows, MOST)
        expected = dict(zip(greedy.non_tensor_batch["uid"], greedy.tensor("rewards"), strict=True))
        for _ in range(STEPS):
            _, rollout = trainer.step()
            uids = rollout.non_tensor_batch["uid"].tolist()
            found = rollout.tensor("greedy_rewards").tolist()
            assert found == pytest.approx([float(expected[uid]) for uid in uids])


def racing(model_dir: Path, *, dedicated: bool = False, **changes: Any) -> Recipe:
    rollout = {"extra_prompts": 2, "carry_over": 2, "max_new_tokens": MOST}
    rollout |= (IN_FLOAT32 if dedicated else {}) | changes.pop("rollout", {})
    training = {"num_iterations": 2, "steps_per_iteration": STEPS, "prompts_per_step": NUM_PROMPTS}
    settings = {"algorithm": CORRECTED, "training": training} | EXACT | changes
    return recipe(model_dir, dedicated=dedicated, rollout=rollout, **settings)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("num_devices", "dedicated"),
    [
        pytest.param(1, False, marks=pytest.mark.long, id="one"),
        pytest.param(2, False, id="two"),
        pytest.param(2, True, id="own"),
    ],
)
def test_an_iteration_trains_on_each_prompt_once_and_a_resumed_run_repeats_it(
    tiny_model_dir: Path, tmp_path: Path, num_devices: int, dedicated: bool
) -> None:
    placement = {"num_devices": num_devices, "threads_per_device": 1, "micro_batch_size": 8}
    placement |= {"rollout_devices": 1} if dedicated else {}
    settings = racing(tiny_model_dir, dedicated=dedicated, placement=placement)
    rows: list[Any] = [
        ITEMS[row % len(ITEMS)] | {"uid": f"row-{row}"} for row in range(STEPS * NUM_PROMPTS)
    ]
    source = settings.model.path
    eos_id = load_tokenizer(source).eos_token_id

    def iteration(trainer: TextTrainer) -> tuple[list[str], list[dict[str, float]], set[int]]:
        uids, metrics, ages = [], [], set()
        for step in range(STEPS):
            number = trainer.backends()["policy"].weight_version().number
            found, rollout = trainer.step()
            assert len(rollout) == NUM_PROMPTS * NUM_SIBLINGS
            assert found["carried_groups"] == (2 if step < STEPS - 1 else 0)
            keys = ["response_mask", "input_ids", "num_tokens", TOKEN_VERSIONS, "stop_reason"]
            taught = rollout.fetch(keys)
            mask_BT = taught.tensor("response_mask").bool()
            assert_ended(taught, mask_BT, eos_id)
            versions = taught.tensor(TOKEN_VERSIONS)[mask_BT]
            ages |= set((number - versions).tolist())
            assert found["staleness_max"] == int((number - versions).max())
            uids += rollout.non_tensor_batch["uid"][::NUM_SIBLINGS].tolist()
            metrics.append(found)
        return uids, metrics, ages

    with built(TextTrainer(settings, source, rows)) as trainer:
        uids, _, ages = iteration(trainer)
        assert sorted(uids) == sorted(row["uid"] for row in rows), "none is lost, none is twice"
        assert {0, 1} <= ages <= {0, 1, 2}
        trainer.save(str(tmp_path))
        state = trainer.state_dict()
        after = iteration(trainer)
    with built(TextTrainer(settings, source, rows)) as trainer:
        trainer.load(str(tmp_path))
        trainer.load_state_dict(state)
        again = iteration(trainer)
    assert again[0] == after[0]
    for one, other in zip(after[1], again[1], strict=True):
        assert one["loss"] == other["loss"]
        assert one.get("carried_tokens") == other.get("carried_tokens")


def assert_ended(rows: Any, mask_BT: torch.Tensor, eos_id: int) -> None:
    """Each reply ended by itself or at the limit, and has nothing after its end."""
    replies_BT = rows.tensor("input_ids")[:, -mask_BT.shape[1] :]
    for row, reason in enumerate(rows.non_tensor_batch["stop_reason"]):
        tokens = replies_BT[row][mask_BT[row]].tolist()
        ended = reason == "eos"
        assert reason in ("eos", "length")
        assert tokens.count(eos_id) == ended
        assert tokens[-1] == eos_id if ended else len(tokens) == MOST


class Source:
    """Rows in order."""

    def __init__(self) -> None:
        self.num_given = 0

    def next_batch(self) -> list[Any]:
        self.num_given += NUM_PROMPTS
        return [{"uid": str(n)} for n in range(self.num_given - NUM_PROMPTS, self.num_given)]

    def state_dict(self) -> dict[str, object]:
        return {}

    def load_state_dict(self, state: dict[str, object]) -> None:
        pass


def test_each_rank_goes_on_with_as_many_groups(tiny_model_dir: Path) -> None:
    placement = {"num_devices": 2, "threads_per_device": 1}
    prompts = StepPrompts(racing(tiny_model_dir, placement=placement), Source())
    first = prompts.next(0)
    uids = [item["uid"] for item in first.non_tensor_batch["item"]]
    assert uids == ["0", "1", "2", "3", "4", "5"]
    assert first.meta_info["awaited"] is False
    begun = Begun([1], Reply([2], [0.0], StopReason.GIVEN_UP))
    prompts.leave(first, [Unfinished("2", 1, (begun,)), Unfinished("5", 1, (begun,))])
    second = prompts.next(1)
    assert [item["uid"] for item in second.non_tensor_batch["item"]] == [
        "2",
        "6",
        "7",
        "5",
        "8",
        "9",
    ]
    assert [one is not None for one in second.non_tensor_batch["begun"]] == [1, 0, 0, 1, 0, 0]
    prompts.leave(second, [Unfinished("7", 1, (begun,)), Unfinished("9", 1, (begun,))])
    last = prompts.next(2)
    assert [item["uid"] for item in last.non_tensor_batch["item"]] == ["7", "10", "9", "11"]
    assert last.meta_info["awaited"] is True


def test_ranks_go_on_with_as_many_tokens(tiny_model_dir: Path) -> None:
    """Groups that have far to go are dealt to different ranks."""
    placement = {"num_devices": 2, "threads_per_device": 1}
    recipe = racing(tiny_model_dir, placement=placement, rollout={"extra_prompts": 4})
    prompts = StepPrompts(recipe, Source())
    ended = Begun([1], Reply([2] * 9, [0.0] * 9, StopReason.EOS))
    late = Begun([1], Reply([2] * (MOST - 1), [0.0] * (MOST - 1), StopReason.GIVEN_UP))
    groups = {"1": (None, late), "4": (None, None), "6": (ended, late), "7": (late, late)}
    prompts.leave(prompts.next(0), [Unfinished(uid, 1, begun) for uid, begun in groups.items()])
    second = prompts.next(1)
    begun = [bool(one) for one in second.non_tensor_batch["begun"]]
    assert begun == [True, True, False, False, True, True, False, False]
    uids = [item["uid"] for item in second.non_tensor_batch["item"]]
    assert [uids[:2], uids[4:6]] == [["4", "6"], ["1", "7"]]


def test_what_does_not_divide_among_the_ranks_is_not_lost(tiny_model_dir: Path) -> None:
    """An engine of somebody's own may leave another number of groups."""
    placement = {"num_devices": 2, "threads_per_device": 1}
    prompts = StepPrompts(racing(tiny_model_dir, placement=placement), Source())
    begun = Begun([1], Reply([2], [0.0], StopReason.GIVEN_UP))
    prompts.leave(prompts.next(0), [Unfinished("2", 1, (begun,))])
    uids = [item["uid"] for item in prompts.next(1).non_tensor_batch["item"]]
    assert sorted(uids, key=int) == ["2", "6", "7", "8", "9", "10"]


@pytest.mark.parametrize(
    ("rollout", "training", "message"),
    [
        (
            {"extra_prompts": 0},
            {},
            r"carry_over: 2: rollout\.extra_prompts is the number of groups",
        ),
        ({"extra_prompts": 8}, {}, r"at most training\.prompts_per_step \(4\); it is 8"),
        ({}, {"steps_per_iteration": 1}, "no effect with training.steps_per_iteration: 1"),
        ({"min_new_tokens": 2}, {}, r"not with rollout\.min_new_tokens: 2"),
        ({"router_replay": True}, {}, r"not with rollout\.router_replay: True"),
    ],
)
def test_what_cannot_be_carried_over_is_refused_by_name(
    tiny_model_dir: Path, rollout: dict[str, Any], training: dict[str, Any], message: str
) -> None:
    usual = {"num_iterations": 2, "steps_per_iteration": STEPS, "prompts_per_step": NUM_PROMPTS}
    with pytest.raises(ValidationError, match=message):
        racing(tiny_model_dir, rollout=rollout, training=usual | training)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"name": "grpo"}, r"carry_over: 2 trains on samples of older weights.*carry_over: 0"),
        (CORRECTED | {"name": "dapo"}, r"carry_over: 2: algorithm dapo samples further rollouts"),
    ],
)
def test_an_algorithm_that_does_not_fit_is_refused(
    tiny_model_dir: Path, algorithm: dict[str, Any], message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        settings = racing(tiny_model_dir, algorithm=algorithm)
        algorithm_cls, config = algorithms.resolve(settings.algorithm, "algorithm")
        check_serves_tokens(algorithm_cls(config), settings)
