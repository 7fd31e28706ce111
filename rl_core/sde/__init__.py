"""Sampling of flow models as a chain of actions: schedules, step kernels, stochastic steps, initial
noise."""

from rl_core.sde.actions import action_step, action_steps
from rl_core.sde.config import Kernel, SdeConfig, StepsConfig, StepsKind
from rl_core.sde.kernels import (
    Step,
    cps_step,
    dance_step,
    euler_step,
    flow_step,
    gaussian_kl,
    gaussian_log_prob,
)
from rl_core.sde.noise import NoiseRecipe, initial_noise
from rl_core.sde.schedules import dynamic_shift, sigmas
from rl_core.sde.solvers import dpm2_step
from rl_core.sde.steps import stochastic_steps

__all__ = [
    "Kernel",
    "NoiseRecipe",
    "SdeConfig",
    "Step",
    "StepsConfig",
    "StepsKind",
    "action_step",
    "action_steps",
    "cps_step",
    "dance_step",
    "dpm2_step",
    "dynamic_shift",
    "euler_step",
    "flow_step",
    "gaussian_kl",
    "gaussian_log_prob",
    "initial_noise",
    "sigmas",
    "stochastic_steps",
]
