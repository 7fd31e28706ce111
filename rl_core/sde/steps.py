"""Selection of the stochastic denoising steps, which are the actions."""

from __future__ import annotations

import random

from rl_core.sde.config import StepsConfig, StepsKind


def stochastic_steps(
    config: StepsConfig, num_steps: int, rollout: int, seed: int = 0
) -> tuple[int, ...]:
    """Return the positions of the stochastic steps of a rollout, ascending; the same on every rank.

    Args: num_steps: length of the whole trajectory. rollout: number of the rollout in training,
    from 0. seed: seed of `random`. Raises: ValueError when the configured steps do not fit into the
    trajectory.
    """
    if config.kind is StepsKind.ALL:
        return tuple(range(num_steps))
    if config.kind is StepsKind.LIST:
        outside = [index for index in config.indices if not 0 <= index < num_steps]
        if outside:
            raise ValueError(
                f"sde.steps.indices {outside} lie outside the {num_steps} steps, 0..{num_steps - 1}"
            )
        return tuple(sorted(set(config.indices)))
    if config.size > num_steps:
        raise ValueError(
            f"sde.steps.size {config.size} is more than the {num_steps} steps of a rollout"
        )
    if config.kind is StepsKind.RANDOM:
        return tuple(
            sorted(random.Random(f"{seed}/{rollout}").sample(range(num_steps), config.size))
        )
    start = window_start(rollout, num_steps, config.size, config.stride, config.every)
    return tuple(range(start, start + config.size))


def window_start(rollout: int, num_steps: int, size: int, stride: int, every: int) -> int:
    """Return the start of MixGRPO's window (arXiv 2507.21802 alg. 1), which moves by `stride` after
    `every` rollouts, then starts over."""
    num_places = (num_steps - size) // stride + 1
    return (rollout // every) % num_places * stride
