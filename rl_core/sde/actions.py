"""The step that samples and scores, by the kernel of a recipe's `sde` block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rl_core.sde.config import Kernel, SdeConfig
from rl_core.sde.kernels import Step, cps_step, dance_step, flow_step
from rl_core.sde.steps import stochastic_steps

if TYPE_CHECKING:
    from torch import Generator, Tensor


def action_steps(config: SdeConfig, num_steps: int, rollout: int, seed: int = 0) -> tuple[int, ...]:
    """Return the positions of the steps that are actions: the stochastic ones, except for a last
    step of `cps`, which draws no noise.

    Raises: ValueError when none is left, or the configured steps do not fit into the trajectory.
    """
    chosen = stochastic_steps(config.steps, num_steps, rollout, seed)
    if config.kernel is Kernel.CPS:
        chosen = tuple(step for step in chosen if step != num_steps - 1)
    if not chosen:
        raise ValueError(
            f"sde.steps: none of the {num_steps} steps draws noise, so there is nothing to train"
        )
    return chosen


def action_step(
    config: SdeConfig,
    x: Tensor,
    v: Tensor,
    sigma: float | Tensor,
    sigma_next: float | Tensor,
    *,
    sigma_first: float | Tensor,
    generator: Generator | Sequence[Generator] | None = None,
    next_sample: Tensor | None = None,
) -> Step:
    """Take a stochastic step with the configured kernel: draw the next sample, or score the given
    `next_sample`.

    Args: sigma, sigma_next: [B] or one for all. sigma_first: the schedule's second level, see
    `flow_step`. generator: one for all rows, or one per row.
    """
    given = {"eta": config.eta, "generator": generator, "next_sample": next_sample}
    if config.kernel is Kernel.FLOW:
        return flow_step(x, v, sigma, sigma_next, sigma_first=sigma_first, **given)
    step = dance_step if config.kernel is Kernel.DANCE else cps_step
    return step(x, v, sigma, sigma_next, **given)
