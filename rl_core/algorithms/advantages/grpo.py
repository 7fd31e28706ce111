"""GRPO (arXiv 2402.03300 sec. 4.1.2): the reward relative to the group, A = (R - mu_g) / (sigma +
eps).

`norm_by_std: false` is Dr.GRPO (arXiv 2503.20783 sec. 3.2); `std_scope: batch` is Flow-GRPO's
global deviation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rl_core.algorithms.advantages.base import RowEstimator, RowInputs, advantage_estimators
from rl_core.algorithms.advantages.groups import Groups
from rl_core.algorithms.advantages.scaling import ScaledConfig, StdScope, over_std

if TYPE_CHECKING:
    from torch import Tensor


def grpo(
    groups: Groups,
    *,
    norm_by_std: bool = True,
    std_scope: StdScope = StdScope.GROUP,
    unbiased: bool = True,
    eps: float = 1e-6,
    eps_in_root: bool = False,
) -> Tensor:
    """Return (R - mu_g) / (sigma + eps), [B] in float64; 0 in a group of equal rewards.

    Args: unbiased: sigma over n - 1, not n. eps_in_root: sqrt(variance + eps) instead.
    """
    if not norm_by_std:
        return groups.centred()
    if std_scope is StdScope.GROUP:
        variance_B = groups.variance(unbiased)
    else:
        variance_B = _batch_variance(groups, unbiased)
    return over_std(groups.centred(), variance_B, eps, eps_in_root)


def _batch_variance(groups: Groups, unbiased: bool) -> Tensor:
    centred_B = groups.rewards_B - groups.rewards_B.mean()
    return (centred_B.square().sum() / max(len(centred_B) - int(unbiased), 1)).expand_as(centred_B)


@advantage_estimators.register("grpo")
class GrpoAdvantage(RowEstimator):
    """GRPO: rewards relative to their own group, divided by a standard deviation; see `grpo`."""

    class Config(ScaledConfig):
        """Conventions in which published versions of GRPO differ."""

        norm_by_std: bool = True
        """Divide by the standard deviation; false gives Dr.GRPO."""
        std_scope: StdScope = StdScope.GROUP
        """Rows over which the standard deviation is computed."""

    config: Config
    needs_siblings: ClassVar[bool] = True
    reads_rows_alone: ClassVar[bool] = True

    def per_row(self, inputs: RowInputs, groups: Groups) -> Tensor:
        """Return the advantages, [B], as `grpo`."""
        config = self.config
        return grpo(
            groups,
            norm_by_std=config.norm_by_std,
            std_scope=config.std_scope,
            unbiased=config.unbiased,
            eps=config.eps,
            eps_in_root=config.eps_in_root,
        )
