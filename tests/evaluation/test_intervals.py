import pytest

from rl_core.evaluation.intervals import paired_change, wilson_interval


@pytest.mark.parametrize(
    ("num_right", "num_rows", "low", "high"),
    [
        (8, 10, 0.4902, 0.9433),
        (0, 10, 0.0, 0.2775),
        (10, 10, 0.7225, 1.0),
        (50, 100, 0.4038, 0.5962),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_wilson_interval_at_known_values(num_right: int, num_rows: int, low: float, high: float):
    assert wilson_interval(num_right, num_rows) == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_narrows_with_rows_and_widens_with_the_level():
    low, high = wilson_interval(8, 10)
    assert low < wilson_interval(80, 100)[0] < wilson_interval(80, 100)[1] < high
    assert (
        wilson_interval(8, 10, level=0.99)[0] < low < high < wilson_interval(8, 10, level=0.99)[1]
    )


def test_without_rows_everything_is_possible():
    assert wilson_interval(0, 0) == (0.0, 1.0)


def test_paired_change_by_hand():
    # Changes 1, 0, 0, 1: mean 0.5, standard deviation sqrt(1/3), standard error sqrt(1/12) =
    # 0.288675.
    assert paired_change([0, 0, 1, 0], [1, 0, 1, 1]) == pytest.approx(
        (0.5, 0.5 - 0.565793, 0.5 + 0.565793), abs=1e-6
    )


def test_paired_change_is_sharper_than_two_samples_that_vary_alike():
    before = [0.0, 1.0, 2.0, 3.0]
    assert paired_change(before, [value + 0.5 for value in before]) == (0.5, 0.5, 0.5)


def test_paired_change_turns_its_sign_with_the_order():
    change, low, high = paired_change([0, 0, 1], [1, 1, 0.5])
    assert paired_change([1, 1, 0.5], [0, 0, 1]) == pytest.approx((-change, -high, -low))


def test_change_of_a_share_ends_at_one():
    before, after = [0.0] * 48, [1.0] * 46 + [0.0] * 2
    change, low, high = paired_change(before, after)
    assert high > 1.0
    assert paired_change(before, after, within=(0.0, 1.0)) == (change, low, 1.0)
    assert paired_change(after, before, within=(0.0, 1.0)) == (-change, -1.0, -low)


def test_one_row_settles_nothing():
    assert paired_change([0.0], [1.0]) == (1.0, -1.0, 1.0)


def test_rows_that_do_not_pair_are_refused():
    with pytest.raises(ValueError, match="zip"):
        paired_change([0.0, 1.0], [1.0])
