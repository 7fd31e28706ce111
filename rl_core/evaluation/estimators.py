"""Estimates from several samples of each prompt, and their intervals.

The prompts are the draws: samples of one prompt are alike, so an interval is taken over one value
per prompt (a cluster bootstrap), never over all samples as if they were independent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from rl_core.evaluation.bootstrap import resampled_means
from rl_core.evaluation.intervals import wilson_interval

NUM_RESAMPLES = 2_000
MAX_DISTINCT = 2_000
"""Number of different values up to which an interval is bootstrapped. The cost grows with it, and
with more values the normal interval is the same."""
Z_95 = 1.959964


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """Return the probability that at least one of `k` samples passes, estimated without bias from
    `num_samples` of which `num_passed` did (HumanEval, arXiv 2107.03374 eq. 1).

    Returns: NaN for `k` above `num_samples`, for which there is no unbiased estimate.
    """
    if k > num_samples:
        return math.nan
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def majority_passes(answers: Sequence[str], passes: Sequence[float]) -> float:
    """Return the mean of `passes` over the samples with the most frequent answer (majority voting,
    arXiv 2203.11171); 0 if no sample has an answer.

    Among equally frequent answers one is drawn, so the result is the mean over them. Args: answers:
    of the samples of one prompt; an empty one has no vote.
    """
    votes = Counter(answer for answer in answers if answer)
    if not votes:
        return 0.0
    most = max(votes.values())
    shares = []
    for answer in (one for one, count in votes.items() if count == most):
        found = [two for one, two in zip(answers, passes, strict=True) if one == answer]
        shares.append(sum(found) / len(found))
    return sum(shares) / len(shares)


def mean_interval(values_P: Sequence[float], *, seed: int = 0) -> tuple[float, float]:
    """Return the 95 % interval of the mean of one value per prompt.

    Values that are all 0 or 1 have that of Wilson, which is accurate at 0 and 1 too; others that of
    a bootstrap over prompts, with the same result for the same values. Raises: ValueError without
    values.
    """
    if not values_P:
        raise ValueError("no values: expected at least one")
    if set(values_P) <= {0.0, 1.0}:
        return wilson_interval(int(sum(values_P)), len(values_P))
    array = np.array(values_P)
    if len(set(values_P)) > MAX_DISTINCT:
        half = Z_95 * float(array.std(ddof=1)) / math.sqrt(len(array))
        return float(array.mean()) - half, float(array.mean()) + half
    means = resampled_means(array, NUM_RESAMPLES, np.random.default_rng(seed))
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)
