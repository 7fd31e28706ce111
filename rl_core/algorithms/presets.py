"""The vetted presets for tokens: named defaults of a recipe's blocks `advantage`, `loss`, `kl`, ...

A recipe only states the differences: `{name: dapo, loss: {clip_high: 0.25}}`. `docs/algorithms.md`
has papers and formulas.
"""

from __future__ import annotations

from typing import ClassVar

from rl_core.algorithms.base import algorithms
from rl_core.algorithms.policy_gradient import PolicyGradient


@algorithms.register("grpo")
class Grpo(PolicyGradient):
    """GRPO (arXiv 2402.03300): rewards relative to the group, PPO's clip on every token, no
    critic."""

    class Config(PolicyGradient.Config):
        """Settings of GRPO: symmetric clip, mean over tokens, no KL."""

        preset: ClassVar = {"advantage": {"name": "grpo"}, "loss": {"name": "ppo_clip"}}


@algorithms.register("dr_grpo")
class DrGrpo(PolicyGradient):
    """Dr.GRPO (arXiv 2503.20783): GRPO without its two biases, the division by sigma and by the
    reply's length."""

    class Config(PolicyGradient.Config):
        """Settings of Dr.GRPO: rewards are only centred; token losses are summed over a constant
        length."""

        preset: ClassVar = {
            "advantage": {"name": "grpo", "norm_by_std": False},
            "loss": {"name": "ppo_clip", "aggregation": "seq-mean-token-sum-norm"},
        }


@algorithms.register("dapo")
class Dapo(PolicyGradient):
    """DAPO (arXiv 2503.14476): a higher upper clip, token mean, dynamic sampling, truncated replies
    left out."""

    class Config(PolicyGradient.Config):
        """Settings of DAPO: the paper's clip range, no KL."""

        preset: ClassVar = {
            "advantage": {"name": "grpo"},
            "loss": {
                "name": "ppo_clip",
                "clip_low": 0.2,
                "clip_high": 0.28,
                "aggregation": "token-mean",
            },
            "dynamic_sampling": True,
            "overlong": {"filter": True},
        }


@algorithms.register("rloo")
class Rloo(PolicyGradient):
    """RLOO (arXiv 2402.14740): the leave-one-out mean as baseline, with PPO's clip for more than
    one update."""

    class Config(PolicyGradient.Config):
        """Settings of RLOO: a row counts as one action, so its token losses are summed, then
        averaged over rows."""

        preset: ClassVar = {
            "advantage": {"name": "rloo"},
            "loss": {"name": "ppo_clip", "aggregation": "seq-mean-token-sum"},
        }


@algorithms.register("reinforce_plus_plus")
class ReinforcePlusPlus(PolicyGradient):
    """REINFORCE++ (arXiv 2501.03262): returns whitened over the batch, the KL subtracted from the
    reward of each token."""

    class Config(PolicyGradient.Config):
        """Settings of REINFORCE++: the KL is part of the reward; set `kl.coef: 0` to do without a
        reference."""

        preset: ClassVar = {
            "advantage": {"name": "reinforce_plus_plus"},
            "loss": {"name": "ppo_clip"},
            "kl": {"coef": 0.01, "kind": "k1", "place": "reward"},
        }


@algorithms.register("gspo")
class Gspo(PolicyGradient):
    """GSPO (arXiv 2507.18071): ratio and clip of whole replies."""

    class Config(PolicyGradient.Config):
        """Settings of GSPO, with the paper's narrow range."""

        preset: ClassVar = {"advantage": {"name": "grpo"}, "loss": {"name": "gspo"}}


@algorithms.register("cispo")
class Cispo(PolicyGradient):
    """CISPO (arXiv 2506.13585): clipped importance weights, so no token loses its gradient."""

    class Config(PolicyGradient.Config):
        """Settings of CISPO: only the upper bound has an effect."""

        preset: ClassVar = {"advantage": {"name": "grpo"}, "loss": {"name": "cispo"}}


@algorithms.register("sapo")
class Sapo(PolicyGradient):
    """SAPO (arXiv 2511.20347): a soft gate in place of the clip."""

    class Config(PolicyGradient.Config):
        """Settings of SAPO: the gate closes a little faster for A < 0."""

        preset: ClassVar = {"advantage": {"name": "grpo"}, "loss": {"name": "sapo"}}


@algorithms.register("gmpo")
class Gmpo(PolicyGradient):
    """GMPO (arXiv 2507.20673): the geometric mean of a reply's ratios."""

    class Config(PolicyGradient.Config):
        """Settings of GMPO: a wide range of the log-ratio, +-0.4."""

        preset: ClassVar = {"advantage": {"name": "grpo"}, "loss": {"name": "gmpo"}}


@algorithms.register("dppo")
class Dppo(PolicyGradient):
    """DPPO (arXiv 2602.04879): a trust region by divergence; `loss.name: dppo_kl` takes the KL
    instead of the TV."""

    class Config(PolicyGradient.Config):
        """Settings of DPPO: total variation up to 0.2."""

        preset: ClassVar = {"advantage": {"name": "grpo"}, "loss": {"name": "dppo_tv"}}


@algorithms.register("drpo")
class Drpo(PolicyGradient):
    """DRPO (arXiv 2606.09821): a quadratic penalty, weighed by the old probability, in place of the
    clip."""

    class Config(PolicyGradient.Config):
        """Settings of DRPO, with the paper's eps; `loss.weigh_by_probability: false` with
        `loss.eps: 0.2` is SPO."""

        preset: ClassVar = {"advantage": {"name": "grpo"}, "loss": {"name": "drpo"}}


@algorithms.register("ppo")
class Ppo(PolicyGradient):
    """PPO (arXiv 1707.06347) with a critic: generalised advantages, clipped policy and value
    losses."""

    class Config(PolicyGradient.Config):
        """Settings of PPO: undiscounted, lambda 0.95, whitened."""

        preset: ClassVar = {
            "advantage": {"name": "gae", "gamma": 1.0, "lam": 0.95},
            "loss": {"name": "ppo_clip"},
        }


@algorithms.register("remax")
class Remax(PolicyGradient):
    """ReMax (arXiv 2310.10505): the greedy reply's reward as baseline; one sampled reply per prompt
    is enough."""

    class Config(PolicyGradient.Config):
        """Settings of ReMax: the plain policy gradient, summed within a reply."""

        preset: ClassVar = {
            "advantage": {"name": "remax"},
            "loss": {"name": "reinforce", "aggregation": "seq-mean-token-sum"},
        }


@algorithms.register("opo")
class Opo(PolicyGradient):
    """OPO (arXiv 2505.23585): exactly on-policy, with the length-weighted baseline of least
    variance."""

    class Config(PolicyGradient.Config):
        """Settings of OPO: the plain policy gradient, mean over tokens."""

        preset: ClassVar = {"advantage": {"name": "opo"}, "loss": {"name": "reinforce"}}


@algorithms.register("gpg")
class Gpg(PolicyGradient):
    """GPG (arXiv 2504.02546): the plain policy gradient on centred rewards, scaled by the share of
    rewarded rows."""

    class Config(PolicyGradient.Config):
        """Settings of GPG: no clip, no KL."""

        preset: ClassVar = {"advantage": {"name": "gpg"}, "loss": {"name": "gpg"}}


@algorithms.register("rejection_sampling")
class RejectionSampling(PolicyGradient):
    """Rejection-sampling fine-tuning (arXiv 2304.06767, 2308.01825): the best reply of each group
    is learnt by its likelihood, the others are not."""

    class Config(PolicyGradient.Config):
        """Settings of best-of-n: -log pi over the best rewarded reply of each group."""

        preset: ClassVar = {
            "advantage": {"name": "best_of_n"},
            "loss": {"name": "reinforce", "aggregation": "seq-mean-token-mean"},
        }
