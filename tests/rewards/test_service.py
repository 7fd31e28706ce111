"""Several scorers, some of them broken: what cannot be scored is marked, asked about again, and
never becomes 0."""

import math
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from rl_core.data_proto import DataProto
from rl_core.errors import RecipeError, RewardError
from rl_core.ranks.dispatch import NUM_PADDING_ROWS
from rl_core.rewards import Modality, Sample, Scorer, Unscored, resolve_scorers
from rl_core.rewards.asking import Asking
from rl_core.rewards.base import checked_reward
from rl_core.rewards.samples import as_image, prompt_text, samples_of
from rl_core.rewards.service import ERRORS, SCORES, RewardService
from schemas.sections.rewards import RewardServiceConfig

QUICK = RewardServiceConfig(backoff_s=0.0)


class Recorder(Scorer):
    """Scores the length of the reply and remembers the batches it saw."""

    modalities = frozenset({Modality.TEXT})

    def __init__(self, config: Any, device: str = "cpu") -> None:
        super().__init__(config, device)
        self.batches: list[list[str]] = []

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        self.batches.append([sample.text for sample in samples])
        return [float(len(sample.text)) for sample in samples]


class Flaky(Recorder):
    """Cannot score `odd` at first, breaks on `bad` always, and has no opinion on `nan`."""

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        super().score(samples)
        texts = self.batches[-1]
        if "bad" in texts:
            raise ValueError("bad sample")
        asked_before = any("odd" in batch for batch in self.batches[:-1])
        return [
            Unscored("not yet")
            if text == "odd" and not asked_before
            else math.nan
            if text == "nan"
            else 1.0
            for text in texts
        ]


class Short(Recorder):
    """Forgets one."""

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        return [1.0] * (len(samples) - 1)


class Hanging(Recorder):
    """Scores one sample at a time, and hangs on the second."""

    go_on = threading.Event()

    def score(self, samples: Sequence[Sample]) -> Sequence[float | Unscored]:
        if samples[0].text == "slow":
            self.go_on.wait(60)
        return [2.0] * len(samples)


def ask(scorer: Scorer, texts: list[str], config: RewardServiceConfig = QUICK):
    return Asking("it", scorer, config).start([Sample("?", (text,)) for text in texts]).result()


def test_samples_go_in_batches_and_come_back_in_order():
    scorer = Recorder(Recorder.Config(batch_size=2))
    found = ask(scorer, ["a", "bb", "ccc", "dddd", "e"])
    assert found.scores == [1.0, 2.0, 3.0, 4.0, 1.0]
    assert scorer.batches == [["a", "bb"], ["ccc", "dddd"], ["e"]]
    assert found.errors == [None] * 5
    assert found.num_retried == 0


def test_what_failed_is_asked_again_and_alone_in_the_end():
    scorer = Flaky(Flaky.Config())
    found = ask(scorer, ["fine", "odd", "bad"])
    assert found.scores[:2] == [1.0, 1.0]
    assert math.isnan(found.scores[2])
    assert found.errors[:2] == [None, None]
    assert str(found.errors[2]).startswith("ValueError: bad sample (test_service.py:")
    # The broken sample broke its batch twice; alone it breaks nothing else.
    assert scorer.batches == [
        ["fine", "odd", "bad"],
        ["fine", "odd", "bad"],
        ["fine"],
        ["odd"],
        ["bad"],
    ]
    assert found.num_retried == 3


def test_a_sample_that_is_marked_is_retried_without_the_others():
    scorer = Flaky(Flaky.Config())
    found = ask(scorer, ["fine", "odd"])
    assert found.scores == [1.0, 1.0]
    assert scorer.batches == [["fine", "odd"], ["odd"]]


def test_nan_and_too_few_scores_are_failures_with_a_reason():
    nan = ask(Flaky(Flaky.Config()), ["fine", "nan"])
    assert nan.errors == [None, "the score is nan, not a finite number between -1e30 and 1e30"]
    short = ask(Short(Short.Config()), ["a", "b"])
    assert all(map(math.isnan, short.scores))
    assert short.errors == ["ValueError: 0 scores for 1 samples"] * 2


def test_tries_are_spaced_by_growing_pauses(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    ask(Short(Short.Config()), ["a"], RewardServiceConfig(max_tries=4, backoff_s=0.25))
    assert pauses == [0.25, 0.5, 1.0]


def test_a_scorer_that_hangs_loses_only_what_it_has_not_scored():
    Hanging.go_on.clear()
    asking = Asking("it", Hanging(Hanging.Config(timeout_s=0.3, batch_size=1)), QUICK)
    found = asking.start([Sample("?", (text,)) for text in ("quick", "slow", "quick")]).result()
    assert found.scores[0] == 2.0
    assert found.errors == [None, "no score within 0.3 s", "no score within 0.3 s"]
    again = asking.start([Sample("?", ("quick",))]).result()
    assert again.errors == ["no score within 0.3 s"], "a scorer was called from two threads at once"
    Hanging.go_on.set()
    deadline = time.monotonic() + 10
    while asking.start([Sample("?", ("quick",))]).result().scores != [2.0]:
        assert time.monotonic() < deadline


def rollout(texts: list[str], **tensors: torch.Tensor) -> DataProto:
    columns = {
        "prompt": [[{"role": "user", "content": "2+2?"}]] * len(texts),
        "replies": [["thinking", text] for text in texts],
        "ground_truth": ["4"] * len(texts),
        "stop_reason": ["eos"] * len(texts),
    }
    return DataProto.from_dict(
        {"last_reply_tokens": torch.arange(len(texts)) * 10, **tensors}, columns
    )


BLOCKS = [
    {"name": "math", "weight": 0.5},
    {"name": "length", "weight": 1.0, "max_length": 20, "buffer": 10},
    {"target": f"{__name__}:Flaky", "weight": 0.0},
]


def test_a_rollout_is_scored_by_all_of_them_with_reasons_for_what_is_missing():
    service = RewardService(BLOCKS, QUICK)
    scored = service.score(rollout([r"\boxed{4}", r"\boxed{5}", "bad"]))
    assert list(service.weights.items()) == [("math", 0.5), ("length", 1.0), ("flaky", 0.0)]
    expected = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [0.0, -1.0, math.nan]])
    torch.testing.assert_close(scored.tensor(SCORES), expected, equal_nan=True)
    assert list(scored.non_tensor_batch[ERRORS][:2]) == [{}, {}]
    assert scored.non_tensor_batch[ERRORS][2]["flaky"].startswith("ValueError: bad sample (")
    assert scored.meta_info["metrics"]["reward/flaky/retried"].value == 3
    service.close()


def test_copies_and_failed_rows_are_not_scored():
    service = RewardService(BLOCKS[2:], QUICK)
    batch = rollout(["one", "two", "copy"], failed=torch.tensor([False, True, False]))
    batch.meta_info[NUM_PADDING_ROWS] = 1
    scores = service.score(batch).tensor(SCORES)[:, 0].tolist()
    assert scores[0] == 1.0
    assert all(map(math.isnan, scores[1:]))
    assert service.asked["flaky"].scorer.batches == [["one"]]  # type: ignore[attr-defined]


def test_unknown_rewards_and_bad_entries_are_refused_by_name():
    with pytest.raises(RewardError, match=r"no rewards \['clip'\] here; there are \['flaky'\]"):
        RewardService(BLOCKS[2:], QUICK).score_samples([], ["clip"])
    with pytest.raises(RecipeError, match=r"rewards.0: give either name .*math"):
        resolve_scorers([{"weight": 1}])
    with pytest.raises(RecipeError, match=r"unknown reward 'lenght' \(did you mean 'length'"):
        resolve_scorers([{"name": "lenght"}])
    with pytest.raises(RecipeError, match=r"rewards.1: the key 'math' is taken"):
        resolve_scorers([{"name": "math"}, {"name": "math"}])
    with pytest.raises(RecipeError, match=r"rewards.0: the key 'environment' is taken"):
        resolve_scorers([{"name": "math", "key": "environment"}])
    with pytest.raises(
        RecipeError, match=r"colour scores image; this recipe's policy produces text"
    ):
        resolve_scorers([{"name": "colour"}], Modality.TEXT)
    with pytest.raises(RecipeError, match=r"rewards.0.buffer|buffer must lie"):
        resolve_scorers([{"name": "length", "max_length": 5, "buffer": 6}])


def test_the_same_scorer_may_stand_twice_under_its_own_keys():
    found = resolve_scorers(
        [{"name": "math"}, {"name": "math", "key": "strict", "answer": "last_line"}]
    )
    assert [key for key, _, _ in found] == ["math", "strict"]


def test_prompts_and_pictures_in_any_form_become_samples():
    conversation = [
        {"role": "system", "content": "s"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "draw"},
                {"type": "image"},
                {"type": "text", "text": "it"},
            ],
        },
    ]
    assert [prompt_text(one) for one in ("plain", conversation, [], None)] == [
        "plain",
        "draw\nit",
        "",
        "",
    ]
    red = torch.zeros(3, 4, 5)
    red[0] = 1.0
    for form in (
        red,
        (red * 255).byte(),
        red.permute(1, 2, 0).numpy(),
        (red * 255).byte().permute(1, 2, 0).numpy(),
    ):
        image = as_image(form)
        assert (image.size, image.getpixel((0, 0))) == ((5, 4), (255, 0, 0))
    assert as_image(torch.full((2, 2), 0.5)).getpixel((1, 1)) == (128, 128, 128)
    for wrong in (torch.zeros(2, 3, 4, 5), torch.full((3, 2, 2), math.nan), torch.zeros(2, 7, 7)):
        with pytest.raises(ValueError, match="picture"):
            as_image(wrong)
    videos = DataProto.from_dict({"videos": torch.zeros(2, 3, 3, 4, 4)}, {"prompt": ["a", "b"]})
    assert [len(sample.frames) for sample in samples_of(videos)] == [3, 3]


@pytest.mark.parametrize("value", [1e39, -1e308, 10**400, float("inf"), None, "a lot"])
def test_a_reward_that_32_bit_floats_do_not_hold_is_refused(value: object):
    with pytest.raises(ValueError, match="not a"):
        checked_reward(value)  # type: ignore[arg-type]
    assert checked_reward(True) == 1.0 and checked_reward("0.5") == 0.5  # type: ignore[arg-type]
