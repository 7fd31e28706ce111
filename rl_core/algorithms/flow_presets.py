"""The vetted presets for denoising steps. An action is one stochastic step; its log-probability is
the kernel's.

The `sde` block is part of the algorithm because sampling and scoring must use the same kernel.
Reference log-probabilities are never needed: the KL between two Gaussian steps is exact
(`rl_core.sde.gaussian_kl`).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from rl_core.algorithms.base import algorithms
from rl_core.algorithms.blocks import Block
from rl_core.algorithms.policy_gradient import PolicyGradient
from rl_core.sde.config import SdeConfig

ADVANTAGE: Block = {"name": "grpo", "std_scope": "batch", "clamp": 5.0}
CLIP: Block = {"name": "ppo_clip", "clip_low": 1e-4, "clip_high": 1e-4}


class FlowPolicyGradient(PolicyGradient):
    """A policy gradient whose actions are denoising steps."""

    class Config(PolicyGradient.Config):
        """Settings of a policy gradient, and the kernel of the steps."""

        sde: SdeConfig = Field(default_factory=SdeConfig)
        """Kernel that samples and scores, and the steps that it is used on."""

    # Built with its own settings alone, of which `PolicyGradient` reads its part.
    config: Config  # pyright: ignore[reportIncompatibleVariableOverride]


@algorithms.register("flow_grpo")
class FlowGrpo(FlowPolicyGradient):
    """Flow-GRPO (arXiv 2505.05470): GRPO on the steps of an SDE with the marginals of the flow."""

    class Config(FlowPolicyGradient.Config):
        """Settings of Flow-GRPO, with the authors' defaults for GenEval and OCR; for PickScore
        `kl.coef: 0.01`."""

        preset: ClassVar = {
            "advantage": ADVANTAGE,
            "loss": CLIP,
            "kl": {"coef": 0.04, "kind": "exact"},
            "sde": {"kernel": "flow", "eta": 0.7},
        }


@algorithms.register("mix_grpo")
class MixGrpo(FlowPolicyGradient):
    """MixGRPO (arXiv 2507.21802): a sliding window of stochastic steps, all others deterministic
    and untrained."""

    class Config(FlowPolicyGradient.Config):
        """Settings of MixGRPO: a window of 4 steps that moves by 1 every 25 iterations."""

        preset: ClassVar = {
            "advantage": ADVANTAGE,
            "loss": CLIP,
            "sde": {
                "kernel": "flow",
                "eta": 0.7,
                "steps": {"kind": "window", "size": 4, "stride": 1, "every": 25},
            },
        }


@algorithms.register("dance_grpo")
class DanceGrpo(FlowPolicyGradient):
    """DanceGRPO (arXiv 2505.07818): the loss of Flow-GRPO on an SDE with constant noise."""

    class Config(FlowPolicyGradient.Config):
        """Settings of DanceGRPO: noise 0.3, advantages over the group's own deviation, no KL."""

        preset: ClassVar = {
            "advantage": {"name": "grpo", "clamp": 5.0},
            "loss": CLIP,
            "sde": {"kernel": "dance", "eta": 0.3},
        }


@algorithms.register("flow_dppo")
class FlowDppo(FlowPolicyGradient):
    """Flow-DPPO: the unclipped surrogate inside an exact KL trust region."""

    class Config(FlowPolicyGradient.Config):
        """Settings of Flow-DPPO: like Flow-GRPO, with the trust region in place of the clip."""

        preset: ClassVar = {
            "advantage": ADVANTAGE,
            "loss": {"name": "flow_dppo"},
            "sde": {"kernel": "flow", "eta": 0.7},
        }
