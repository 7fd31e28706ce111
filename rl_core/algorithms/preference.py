"""Learning from pairs of answers, chosen c and rejected r: MPO (arXiv 2411.10442) and related
losses.

L = preference_weight * P + quality_weight * Q + generation_weight * G, a mean over pairs, with the
implicit reward r(y) = beta sum_t (log pi - log pi_ref), the margin m = r_c - r_r, and the length
|y| of y.

| P: | loss | source |
|---|---|---|
| `dpo` | -log sigmoid(m) | arXiv 2305.18290 eq. 7 |
| `ipo` | (m / beta - 1 / (2 beta))^2 | arXiv 2310.12036 eq. 17 |
| `simpo` | -log sigmoid(beta (mean log pi_c - mean log pi_r) - margin) | arXiv 2405.14734 eq. 6 |
| `orpo` | -log sigmoid(log odds_c - log odds_r), odds of the mean | arXiv 2403.07691 eq. 7 |

| Q: | loss | source |
|---|---|---|
| `bco` | -log sigmoid(r_c - delta) - log sigmoid(delta - r_r) | arXiv 2404.04656 |
| `kto` | 2 - sigmoid(r_c - z) - sigmoid(z - r_r), z = max(0, delta) | arXiv 2402.01306 eq. 8 |

G is -log pi(y_c) / |y_c|. SimPO and ORPO use no reference.

IPO's m / beta is a difference of sums of log-probabilities, as printed; TRL takes means over the
answer instead, so that a beta found there means another margin here.

delta is a moving average of the rewards of all answers. Rows come in adjacent pairs, the chosen one
first, marked by the sign of the advantage. KTO's z is a KL estimated on mismatched answers; here
delta, kept positive, is used instead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from rl_core.algorithms.base import ActionMeasures, StageAlgorithm, algorithms
from rl_core.algorithms.blocks import Block, over_preset
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.pairs import PairAlgorithm, ahead, paired_rows
from rl_core.algorithms.terms import Denominators, cleaned

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor


class PairLoss(StrEnum):
    """Loss that compares the two answers."""

    DPO = "dpo"
    """Logistic loss on the margin."""
    IPO = "ipo"
    """Squared distance to a finite margin of summed log-probabilities, so that certain pairs do not
    push it without end."""
    SIMPO = "simpo"
    """Logistic loss on mean log-probabilities with a margin, without a reference."""
    ORPO = "orpo"
    """Logistic loss on log odds, without a reference."""


class QualityLoss(StrEnum):
    """Loss that judges each answer on its own."""

    BCO = "bco"
    """Loss of a binary classifier around the running reward."""
    KTO = "kto"
    """Saturating value, as in prospect theory."""


class PreferenceConfig(StageAlgorithm.Config):
    """The recipe's `algorithm` block without its name. Missing keys are taken from the preset."""

    preset: ClassVar[Block] = {}

    beta: float = Field(default=0.1, gt=0)
    """Scale of the implicit reward."""
    pair: PairLoss = PairLoss.DPO
    """Loss that compares the two answers."""
    quality: QualityLoss = QualityLoss.BCO
    """Loss that judges each answer on its own."""
    preference_weight: float = Field(default=1.0, ge=0)
    """Weight of the comparison."""
    quality_weight: float = Field(default=0.0, ge=0)
    """Weight of the loss of each answer on its own."""
    generation_weight: float = Field(default=0.0, ge=0)
    """Weight of the likelihood of the chosen answer."""
    margin: float = 0.0
    """Required lead of the chosen answer, for `simpo`."""
    reward_decay: float = Field(default=0.99, ge=0, lt=1)
    """Decay of the moving average delta."""

    @model_validator(mode="before")
    @classmethod
    def _over_preset(cls, values: object) -> object:
        if isinstance(values, Mapping):
            return over_preset(cls.preset, values)
        return values

    @property
    def needs_reference(self) -> bool:
        """True if any term with weight compares with a reference."""
        compares = self.pair in (PairLoss.DPO, PairLoss.IPO) and self.preference_weight > 0
        return compares or self.quality_weight > 0


@dataclass(frozen=True)
class Pairs:
    """Sums over the actions of the chosen and the rejected answer of N pairs, [N, 2] each."""

    log_probs_N2: Tensor
    rewards_N2: Tensor
    lengths_N2: Tensor

    @property
    def means_N2(self) -> Tensor:
        """Mean log-probability of an action."""
        return self.log_probs_N2 / self.lengths_N2


def dpo(pairs: Pairs, config: PreferenceConfig) -> Tensor:
    """Return the DPO loss of each pair, [N]."""
    return -_log_sigmoid(ahead(pairs.rewards_N2))


def ipo(pairs: Pairs, config: PreferenceConfig) -> Tensor:
    """Return the IPO loss of each pair, [N]."""
    return (ahead(pairs.rewards_N2) / config.beta - 1.0 / (2.0 * config.beta)).square()


def simpo(pairs: Pairs, config: PreferenceConfig) -> Tensor:
    """Return the SimPO loss of each pair, [N]."""
    return -_log_sigmoid(config.beta * ahead(pairs.means_N2) - config.margin)


def orpo(pairs: Pairs, config: PreferenceConfig) -> Tensor:
    """Return the ORPO loss of each pair, [N]."""
    # A mean of exactly 0 (every token certain) has infinite odds; the smallest step below keeps
    # them finite.
    means_N2 = pairs.means_N2.clamp(max=-1e-7)
    return -_log_sigmoid(ahead(means_N2 - (-means_N2.expm1()).log()))


def bco(pairs: Pairs, delta: float) -> Tensor:
    """Return the BCO loss of each pair, [N]."""
    chosen_N, rejected_N = pairs.rewards_N2.unbind(1)
    return -_log_sigmoid(chosen_N - delta) - _log_sigmoid(delta - rejected_N)


def kto(pairs: Pairs, delta: float) -> Tensor:
    """Return the KTO loss of each pair, [N]."""
    chosen_N, rejected_N = pairs.rewards_N2.unbind(1)
    base = max(0.0, delta)
    return 2.0 - (chosen_N - base).sigmoid() - (base - rejected_N).sigmoid()


PAIR_LOSSES: dict[PairLoss, Callable[[Pairs, PreferenceConfig], Tensor]] = {
    PairLoss.DPO: dpo,
    PairLoss.IPO: ipo,
    PairLoss.SIMPO: simpo,
    PairLoss.ORPO: orpo,
}
QUALITY_LOSSES: dict[QualityLoss, Callable[[Pairs, float], Tensor]] = {
    QualityLoss.BCO: bco,
    QualityLoss.KTO: kto,
}


class Preference(PairAlgorithm):
    """Weighted sum of a comparison, a loss of each answer on its own, and the chosen answer's
    likelihood."""

    class Config(PreferenceConfig):
        """Settings without a preset."""

    config: PreferenceConfig

    def __init__(self, config: PreferenceConfig) -> None:
        super().__init__(config)
        self.needs_reference = config.needs_reference
        self.delta = 0.0

    def loss(
        self,
        log_probs_BT: Tensor,
        old_log_probs_BT: Tensor,
        advantages_BT: Tensor,
        mask_BT: Tensor,
        ref_log_probs_BT: Tensor | None,
        entropy_BT: Tensor | None,
        denominators: Denominators,
        **measured: Unpack[ActionMeasures],
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return this micro-batch's share of the mean over pairs. `old_log_probs_BT` and
        `entropy_BT` are not used.

        Raises: ValueError when the reference is missing or rows are not adjacent pairs, the chosen
        one first.
        """
        if self.needs_reference and ref_log_probs_BT is None:
            raise ValueError(
                f"ref_log_probs_BT is required by {self.config.pair} with these weights"
            )
        pairs = self._pairs(log_probs_BT, advantages_BT, mask_BT, ref_log_probs_BT)
        num_pairs = max(denominators.num_sequences / 2.0, 1.0)
        weighted = {
            "preference_loss": (
                self.config.preference_weight,
                PAIR_LOSSES[self.config.pair](pairs, self.config),
            ),
            "quality_loss": (
                self.config.quality_weight,
                QUALITY_LOSSES[self.config.quality](pairs, self.delta),
            ),
            "generation_loss": (self.config.generation_weight, -pairs.means_N2[:, 0]),
        }
        shares = {}
        for name, (weight, loss_N) in weighted.items():
            if weight > 0:
                shares[name] = weight * loss_N.sum() / num_pairs
        # The first summand keeps the graph of an idle pass, which holds no pair.
        total = sum(shares.values(), start=pairs.log_probs_N2.sum() * 0.0)
        return total, _metrics({"loss": total, **shares}, pairs)

    def observe(self, metrics: Mapping[str, float], num_rows: int) -> None:
        """Move delta towards the mean reward of the step's answers, `implicit_reward`; skip steps
        without answers."""
        mean = metrics.get("implicit_reward", math.nan)
        if math.isfinite(mean):
            decay = self.config.reward_decay
            self.delta = decay * self.delta + (1.0 - decay) * mean

    def state_dict(self) -> dict[str, float]:
        """Return `delta`."""
        return {"delta": self.delta}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore `state_dict()`."""
        self.delta = state["delta"]

    def _pairs(
        self,
        log_probs_BT: Tensor,
        advantages_BT: Tensor,
        mask_BT: Tensor,
        ref_log_probs_BT: Tensor | None,
    ) -> Pairs:
        kept_BT = mask_BT != 0
        log_probs_BT = cleaned(log_probs_BT, mask_BT)
        if ref_log_probs_BT is None:
            reference_BT = log_probs_BT.detach()
        else:
            reference_BT = ref_log_probs_BT.detach()
        reference_BT = reference_BT.to(log_probs_BT).masked_fill(~kept_BT, 0.0)
        lengths_B, acting_B = kept_BT.sum(1), paired_rows(advantages_BT, mask_BT)
        rewards_B = self.config.beta * (log_probs_BT - reference_BT).sum(1)
        by_row = (log_probs_BT.sum(1), rewards_B, lengths_B.to(log_probs_BT))
        return Pairs(*(values_B[acting_B].view(-1, 2) for values_B in by_row))


def _metrics(shares: dict[str, Tensor], pairs: Pairs) -> dict[str, Metric]:
    rewards_N2 = pairs.rewards_N2.detach().double()
    count = float(len(rewards_N2))
    metrics = {}
    for name, share in shares.items():
        metrics[name] = Metric(MetricKind.SUM, float(share.detach()), count)
    leads_N = ahead(rewards_N2)
    return metrics | {
        "implicit_reward": Metric(MetricKind.MEAN, float(rewards_N2.sum()), 2 * count),
        "reward_margin": Metric(MetricKind.MEAN, float(leads_N.sum()), count),
        "reward_accuracy": Metric(MetricKind.MEAN, float((leads_N > 0).sum()), count),
    }


def _log_sigmoid(values: Tensor) -> Tensor:
    import torch

    return torch.nn.functional.logsigmoid(values)


@algorithms.register("mpo")
class Mpo(Preference):
    """MPO (arXiv 2411.10442): DPO, BCO and the chosen answer's likelihood together."""

    class Config(Preference.Config):
        """Settings of MPO, with InternVL's weights; omni3 used 0.8, 0.2 and 0 with beta 0.05."""

        preset: ClassVar = {
            "preference_weight": 0.8,
            "quality_weight": 0.2,
            "generation_weight": 1.0,
        }


@algorithms.register("dpo")
class Dpo(Preference):
    """DPO (arXiv 2305.18290): the comparison alone."""


@algorithms.register("ipo")
class Ipo(Preference):
    """IPO (arXiv 2310.12036): a squared distance to a finite margin.

    Log-probabilities are summed over the answer, as in the paper; TRL divides them by its length.
    """

    class Config(Preference.Config):
        """Settings of IPO, with the paper's loss."""

        preset: ClassVar = {"pair": "ipo"}


@algorithms.register("simpo")
class Simpo(Preference):
    """SimPO (arXiv 2405.14734): mean log-probabilities with a margin, no reference."""

    class Config(Preference.Config):
        """Settings of SimPO, with the paper's beta and a margin of half of it."""

        preset: ClassVar = {"pair": "simpo", "beta": 2.0, "margin": 1.0}


@algorithms.register("orpo")
class Orpo(Preference):
    """ORPO (arXiv 2403.07691): the chosen answer's likelihood and a small weight on the odds ratio,
    no reference."""

    class Config(Preference.Config):
        """Settings of ORPO, with the paper's lambda, 0.1."""

        preset: ClassVar = {"pair": "orpo", "preference_weight": 0.1, "generation_weight": 1.0}


@algorithms.register("kto")
class Kto(Preference):
    """KTO (arXiv 2402.01306): each answer judged on its own."""

    class Config(Preference.Config):
        """Settings of KTO, without a comparison."""

        preset: ClassVar = {"quality": "kto", "preference_weight": 0.0, "quality_weight": 1.0}
