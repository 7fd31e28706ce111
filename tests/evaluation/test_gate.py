"""Whether a new model may take the champion's place, and how sure a paired bootstrap is of a
gain."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rl_core.errors import RecipeError
from rl_core.evaluation.bootstrap import paired_bootstrap
from rl_core.evaluation.gate import Judged, check_scores, judge, undecided
from rl_core.evaluation.row_scores import row_scores
from schemas.sections.registration import GuardConfig, RegistrationConfig

ALL_WRONG = [0.0] * 8


def rows(
    rewards: Sequence[float], *, cut: int = 0, **scores: Sequence[float]
) -> list[dict[str, Any]]:
    """Held-out rows with these rewards; the first `cut` answers were cut off."""
    return [
        {
            "uid": f"row-{i}",
            "reward": reward,
            "num_tokens": 3 + i,
            "stop_reason": "length" if i < cut else "eos",
        }
        | {name: values[i] for name, values in scores.items()}
        for i, reward in enumerate(rewards)
    ]


def verdict(after: list[dict[str, Any]], before: list[dict[str, Any]], **settings: Any):
    return judge(
        Judged("this version", after), Judged("champion v3", before), RegistrationConfig(**settings)
    )


def test_two_rows_by_hand():
    # Changes 0 and 1: the mean of two draws is 0, 1/2 or 1 with probability 1/4, 1/2, 1/4.
    change = paired_bootstrap([0, 0], [0, 1])
    assert change.mean == 0.5
    assert (change.low, change.high) == (0.0, 1.0)
    assert change.confidence == pytest.approx(0.75, abs=0.02)
    assert paired_bootstrap([0, 0], [0, 1], margin=0.5).confidence == pytest.approx(0.25, abs=0.02)


def test_four_rows_by_hand():
    # One gain in four: no draw of four has it with probability (3/4)^4 = 0.316.
    assert paired_bootstrap([0] * 4, [0, 0, 0, 1]).confidence == pytest.approx(
        1 - 0.75**4, abs=0.02
    )


def test_many_rows_have_the_normal_interval():
    draw = np.random.default_rng(1)
    before, gain = draw.normal(size=400), draw.normal(0.1, 1.0, size=400)
    change = paired_bootstrap(before.tolist(), (before + gain).tolist())
    half = 1.96 * gain.std() / 20
    assert change.mean == pytest.approx(gain.mean())
    assert (change.low, change.high) == pytest.approx(
        (gain.mean() - half, gain.mean() + half), abs=0.01
    )


def test_the_same_rows_give_the_same_answer_and_equal_models_none():
    assert paired_bootstrap([0, 1, 0], [1, 1, 0]) == paired_bootstrap([0, 1, 0], [1, 1, 0])
    nothing = paired_bootstrap([0.5, 1.0], [0.5, 1.0])
    assert (nothing.mean, nothing.low, nothing.high, nothing.confidence) == (0, 0, 0, 0)
    with pytest.raises(ValueError, match="no rows"):
        paired_bootstrap([], [])
    with pytest.raises(ValueError, match="zip"):
        paired_bootstrap([1.0], [1.0, 2.0])


def test_a_gain_beyond_margin_and_confidence_passes():
    found = verdict(rows([1.0] * 6 + [0.0] * 2), rows(ALL_WRONG), margin=0.5, confidence=0.85)
    assert found.passed
    assert found.compared_with == "champion v3"
    assert found.decided_by is not None
    # P(X > 4) of a binomial with n = 8 and p = 3/4.
    assert found.decided_by.confidence == pytest.approx(0.8862, abs=0.01)
    assert found.reason.startswith("accuracy 0.750 against 0.000 of champion v3")


@pytest.mark.parametrize(
    ("after", "before", "settings", "said"),
    [
        (4, 4, {}, "accuracy 0.500 against 0.500 of champion v3 is no gain of more than 0"),
        (2, 4, {}, "is no gain of more than 0"),
        (6, 4, {"margin": 0.25}, "is no gain of more than 0.25"),
        (5, 4, {"confidence": 0.9}, "a gain of more than 0 is only 6"),
        (8, 7, {"confidence": 0.7}, "sure, 70.0% wanted"),
    ],
    ids=["tie", "worse", "exactly-the-margin", "unsure", "one-row"],
)
def test_less_than_that_does_not_pass(after: int, before: int, settings: dict[str, Any], said: str):
    found = verdict(
        rows([1.0] * after + [0.0] * (8 - after)),
        rows([1.0] * before + [0.0] * (8 - before)),
        **settings,
    )
    assert not found.passed
    assert said in found.reason
    assert found.decided_by is not None and not found.decided_by.held


def test_as_much_confidence_as_is_wanted_is_enough():
    after, before = rows([1.0] * 6 + [0.0] * 2), rows([1.0] * 3 + [0.0] * 5)
    decided = verdict(after, before, confidence=0.5).decided_by
    assert decided is not None and 0.5 < decided.confidence < 1
    assert verdict(after, before, confidence=decided.confidence).passed
    assert not verdict(after, before, confidence=np.nextafter(decided.confidence, 1).item()).passed


@pytest.mark.parametrize(
    ("guard", "cut", "passed"),
    [
        ({"truncated_share": {"max_rise": 0.25}}, 2, True),
        ({"truncated_share": {"max_rise": 0.25}}, 3, False),
        ({"style": {"max_drop": 0.0}}, 0, False),
        ({"style": {"max_drop": 0.5}}, 0, True),
    ],
)
def test_a_guard_that_got_worse_stands_in_the_way(guard: dict[str, Any], cut: int, passed: bool):
    after, before = rows([1.0] * 8, cut=cut, style=[0.5] * 8), rows(ALL_WRONG, style=[0.75] * 8)
    found = verdict(after, before, guards=guard)
    assert found.passed is passed
    assert [one.held for one in found.guards] == [passed]
    if not passed:
        name = next(iter(guard))
        assert f"{name} {'rose' if name == 'truncated_share' else 'fell'} by" in found.reason


def test_answers_to_other_rows_are_not_compared():
    good = rows([1.0] * 8)
    fewer, others, turned = (
        rows([0.0] * 7),
        [row | {"uid": f"other-{i}"} for i, row in enumerate(good)],
        good[::-1],
    )
    for before in (fewer, others, turned):
        found = verdict(good, before)
        assert not found.passed
        assert found.reason == "champion v3 was evaluated on other rows"
    assert not undecided("champion v3", "its folder is gone", RegistrationConfig()).passed


def test_another_score_may_decide():
    better, worse = rows(ALL_WRONG, margin=[0.3] * 8), rows([1.0] * 8, margin=[0.1] * 8)
    found = verdict(better, worse, score="margin")
    assert found.passed
    assert found.reason.startswith("margin 0.300 against 0.100 of champion v3")
    for settings, key in (
        ({"score": "margn"}, "score"),
        ({"guards": {"margn": {"max_drop": 0}}}, "guards.margn"),
    ):
        with pytest.raises(
            RecipeError, match=rf"registration.{key}: no score 'margn' .did you mean 'margin'"
        ):
            check_scores(better, RegistrationConfig(**settings))


def test_rows_without_the_score_are_left_out_of_both():
    nan = float("nan")
    before, after = rows(ALL_WRONG, style=[0.1, nan] * 4), rows(ALL_WRONG, style=[0.3, 9.0] * 4)
    found = verdict(after, before, score="style")
    assert found.decided_by is not None
    assert (found.decided_by.before, found.decided_by.after) == pytest.approx((0.1, 0.3))
    with pytest.raises(RecipeError, match=r"registration\.score: no held-out row has a style"):
        check_scores(rows(ALL_WRONG, style=[nan] * 8), RegistrationConfig(score="style"))


def test_scores_of_rows_have_the_means_of_the_receipt():
    answers = rows([1.0, 0.5, 1.0, 0.0], cut=1)
    means = {
        name: sum(row_scores(answers, name)) / 4
        for name in ("accuracy", "mean_reward", "mean_length", "truncated_share")
    }
    assert means == {
        "accuracy": 0.5,
        "mean_reward": 0.625,
        "mean_length": 4.5,
        "truncated_share": 0.25,
    }


@pytest.mark.parametrize("values", [{}, {"max_drop": 0.1, "max_rise": 0.1}])
def test_a_guard_has_one_direction(values: dict[str, float]):
    with pytest.raises(ValidationError, match="only one"):
        GuardConfig(**values)
