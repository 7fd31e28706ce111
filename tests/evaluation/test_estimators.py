"""Estimates from several samples of a prompt, against every subset of samples counted by hand."""

import math
from itertools import combinations, product

import numpy as np
import pytest

from rl_core.evaluation.estimators import majority_passes, mean_interval, pass_at_k
from rl_core.evaluation.intervals import wilson_interval


def test_pass_at_k_is_the_share_of_all_subsets_of_k_with_a_pass():
    for n in range(1, 7):
        for c, k in product(range(n + 1), range(1, n + 1)):
            subsets = list(combinations([1] * c + [0] * (n - c), k))
            share = sum(map(any, subsets)) / len(subsets)
            assert pass_at_k(n, c, k) == pytest.approx(share)
    assert math.isnan(pass_at_k(3, 3, 4))


def test_pass_at_k_is_unbiased():
    # Over every outcome of 5 samples of probability p, its mean is that of 3 samples.
    p, n, k = 0.3, 5, 3
    mean = sum(
        math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1)
    )
    assert mean == pytest.approx(1 - (1 - p) ** k)


def test_the_most_frequent_answer_decides_and_ties_share():
    assert majority_passes(["3", "4", "3"], [1, 0, 1]) == 1
    assert majority_passes(["3", "4", "4"], [1, 0, 0]) == 0
    assert majority_passes(["3", "4"], [1, 0]) == 0.5
    assert majority_passes(["", "", "4"], [0, 0, 1]) == 1, "no answer has no vote"
    assert majority_passes(["", ""], [0, 0]) == 0
    # The same answer once in a form that does not pass.
    assert majority_passes(["3", "3", "5"], [1, 0, 0]) == 0.5


def test_an_interval_of_zeros_and_ones_is_that_of_wilson():
    assert mean_interval([1.0, 0.0, 1.0, 1.0]) == wilson_interval(3, 4)
    assert mean_interval([0.0] * 4)[1] > 0.4
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


def test_an_interval_counts_prompts_and_not_their_samples():
    draw = np.random.default_rng(1)
    # 100 prompts whose samples always agree: as good as one sample each.
    values = draw.choice([0.25, 0.75], size=100).tolist()
    low, high = mean_interval(values)
    half = 1.96 * float(np.std(values)) / 10
    assert (low, high) == pytest.approx((np.mean(values) - half, np.mean(values) + half), abs=0.01)
    assert mean_interval(values) == (low, high)
    many = draw.normal(size=3000)
    half = 1.96 * many.std(ddof=1) / math.sqrt(3000)
    assert mean_interval(many.tolist()) == pytest.approx(
        (many.mean() - half, many.mean() + half), abs=1e-5
    )
