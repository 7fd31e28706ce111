"""Distillation on the policy's own samples: a teacher says what it would have written there.

With the policy S and the teacher T, both after the same tokens:

| divergence | D | source |
|---|---|---|
| `reverse_kl` | KL(S, T) | MiniLLM, arXiv 2306.08543 |
| `forward_kl` | KL(T, S) | arXiv 1503.02531 |
| `jsd` | beta KL(T, M) + (1 - beta) KL(S, M), M = beta T + (1 - beta) S | GKD, arXiv 2306.13649 |

| vocabulary | loss |
|---|---|
| `sampled` | the policy gradient with A_t = -coef (log S - log T) of the sampled token |
| `top_k` | coef agg(D) over the teacher's k likeliest tokens, and all others as one |
| `full` | coef agg(D) over all tokens |

`sampled` estimates the gradient of the reverse KL, and needs one number per token from the teacher;
the other two have the exact gradient of D at each position. `reward_weight` adds the advantages of
the environment's rewards, 0 by default.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from rl_core.algorithms import terms
from rl_core.algorithms.advantages.groups import Groups
from rl_core.algorithms.base import ActionMeasures, RowMeasures, algorithms
from rl_core.algorithms.kl import KlPlace
from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.algorithms.policy_gradient import PolicyGradient
from rl_core.algorithms.teacher import OwnWeights, TeacherConfig, teacher_block
from rl_core.algorithms.terms import Denominators
from rl_core.errors import RewardError

if TYPE_CHECKING:
    from typing import Unpack

    from torch import Tensor

    from schemas.recipe import Recipe

FLOOR = -100.0
"""Least log-probability: a token that a model rules out would make a divergence infinite."""


class Divergence(StrEnum):
    """Distance between the distributions of policy and teacher."""

    REVERSE_KL = "reverse_kl"
    """KL(policy, teacher): the policy keeps to what the teacher finds likely."""
    FORWARD_KL = "forward_kl"
    """KL(teacher, policy): the policy covers all that the teacher finds likely."""
    JSD = "jsd"
    """Generalised Jensen-Shannon divergence, between the two by `beta`."""


class Vocabulary(StrEnum):
    """Tokens on which policy and teacher are compared at each position."""

    SAMPLED = "sampled"
    """The sampled token, by a policy gradient."""
    TOP_K = "top_k"
    """The teacher's likeliest tokens, and all others as one."""
    FULL = "full"
    """All tokens: a row of the vocabulary in memory for each position of a pass."""


def divergence(
    policy_NV: Tensor, teacher_NV: Tensor, kind: Divergence, beta: float = 0.5
) -> Tensor:
    """Return the divergence of each position, [N], in nats.

    Args: policy_NV, teacher_NV: log-probabilities of the same outcomes. beta: of `jsd`, between 0
    and 1.
    """
    import torch

    policy_NV, teacher_NV = policy_NV.clamp(min=FLOOR), teacher_NV.clamp(min=FLOOR)
    if kind is Divergence.REVERSE_KL:
        return _kl(policy_NV, teacher_NV)
    if kind is Divergence.FORWARD_KL:
        return _kl(teacher_NV, policy_NV)
    logs = policy_NV.new_tensor([1.0 - beta, beta]).log()
    mixture_NV = torch.logaddexp(policy_NV + logs[0], teacher_NV + logs[1])
    return beta * _kl(teacher_NV, mixture_NV) + (1.0 - beta) * _kl(policy_NV, mixture_NV)


def _kl(of_NV: Tensor, other_NV: Tensor) -> Tensor:
    return (of_NV.exp() * (of_NV - other_NV)).sum(-1)


class DistillationConfig(PolicyGradient.Config):
    """The recipe's `algorithm` block without its name."""

    teacher: TeacherConfig | None = None
    """Teacher of all rows, or of those whose `data_source` is not in `teachers`; a text alone is
    its path."""
    teachers: dict[str, TeacherConfig] = Field(default_factory=dict)
    """Teachers by the rows' `data_source`."""
    divergence: Divergence = Divergence.REVERSE_KL
    """Distance between the distributions of policy and teacher."""
    beta: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the teacher in the mixture of `jsd`."""
    vocabulary: Vocabulary = Vocabulary.SAMPLED
    """Tokens on which policy and teacher are compared at each position."""
    top_k: int = Field(default=64, ge=1)
    """Number of the teacher's likeliest tokens, with `vocabulary: top_k`."""
    coef: float = Field(default=1.0, gt=0)
    """Weight of the divergence, or of the teacher's part in the advantages."""
    reward_weight: float = Field(default=0.0, ge=0)
    """Weight of the advantages of rewards; 0 learns from the teacher alone."""

    @field_validator("teacher", mode="before")
    @classmethod
    def _text_is_a_path(cls, value: object) -> Any:
        return teacher_block(value)

    @field_validator("teachers", mode="before")
    @classmethod
    def _texts_are_paths(cls, value: object) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {source: teacher_block(one) for source, one in value.items()}

    @model_validator(mode="after")
    def _samples_estimate_the_reverse_kl(self) -> DistillationConfig:
        if self.vocabulary is Vocabulary.SAMPLED and self.divergence is not Divergence.REVERSE_KL:
            raise ValueError(
                f"divergence {self.divergence} needs the teacher's distribution, of which "
                "vocabulary: sampled has one token; set vocabulary: top_k or full"
            )
        return self

    @model_validator(mode="after")
    def _rewards_count_where_they_are_asked_for(self) -> DistillationConfig:
        if self.reward_weight > 0:
            return self
        asking = {
            "dynamic_sampling": self.dynamic_sampling,
            "kl.place: reward": self.kl.coef > 0 and self.kl.place is KlPlace.REWARD,
        }
        for key, is_set in asking.items():
            if is_set:
                raise ValueError(f"{key} works on rewards, whose reward_weight is 0; leave it out")
        return self

    @property
    def named_teachers(self) -> dict[str, TeacherConfig]:
        """All teachers by their key in the block."""
        own = {} if self.teacher is None else {"teacher": self.teacher}
        return own | {f"teachers.{source}": one for source, one in self.teachers.items()}


def teachers_of(recipe: Recipe) -> dict[str, TeacherConfig]:
    """Return the teachers of a recipe by their key in the block `algorithm`; none for most."""
    _, config = algorithms.resolve(recipe.algorithm, "algorithm")
    if isinstance(config, DistillationConfig):
        return config.named_teachers
    return {}


@algorithms.register("distillation")
class Distillation(PolicyGradient):
    """On-policy distillation: the policy's samples, judged token by token by a teacher."""

    class Config(DistillationConfig):
        """Settings of the reverse KL on sampled tokens, without rewards."""

    config: DistillationConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: DistillationConfig) -> None:
        super().__init__(config)
        self.needs_teacher = True
        self.compares_distributions = config.vocabulary is not Vocabulary.SAMPLED
        self.needs_siblings = self.needs_siblings and config.reward_weight > 0
        self.learns_from_advantages = not self.compares_distributions or config.reward_weight > 0
        self.vanishes_without_advantage = (
            self.vanishes_without_advantage and not self.compares_distributions
        )

    def advantages(
        self,
        rewards_B: Tensor,
        group_ids_B: Tensor,
        mask_BT: Tensor,
        **measured: Unpack[RowMeasures],
    ) -> tuple[Tensor, dict[str, Metric]]:
        """Return the weighted advantages of the rewards, and on sampled tokens those of the
        teacher, [B, T].

        Metrics: those of the groups, and on sampled tokens `teacher_kl`, `teacher_coverage` and
        `teacher_entropy`, if it is known. Raises: RewardError when the teacher's log-probability of
        a sampled token is missing or not finite.
        """
        teacher_BT = measured.pop("teacher_log_probs_BT", None)
        entropy_BT = measured.pop("teacher_entropy_BT", None)
        if self.config.reward_weight > 0:
            rewarded_BT, metrics = super().advantages(rewards_B, group_ids_B, mask_BT, **measured)
            advantages_BT = self.config.reward_weight * rewarded_BT
        else:
            advantages_BT = terms.cleaned(mask_BT.float() * 0.0, mask_BT)
            metrics = Groups.of(rewards_B, group_ids_B).metrics()
        if self.compares_distributions:
            return advantages_BT, metrics
        log_probs_BT = measured.get("log_probs_BT")
        if teacher_BT is None or log_probs_BT is None:
            raise ValueError("distillation needs log_probs_BT and teacher_log_probs_BT")
        teacher_BT = terms.cleaned(teacher_BT, mask_BT)
        if not bool(teacher_BT.isfinite().all()):
            row = int((~teacher_BT.isfinite()).any(1).nonzero()[0])
            raise RewardError(f"row {row}: the teacher gave a token no finite log-probability")
        ahead_BT = terms.cleaned(log_probs_BT, mask_BT) - teacher_BT
        count = float((mask_BT != 0).sum())
        sums = {"teacher_kl": ahead_BT, "teacher_coverage": teacher_BT.exp()}
        if entropy_BT is not None:
            sums["teacher_entropy"] = entropy_BT
        for name, values_BT in sums.items():
            kept_BT = values_BT.double().masked_fill(mask_BT == 0, 0.0)
            metrics[name] = Metric(MetricKind.MEAN, float(kept_BT.sum()), count)
        return advantages_BT - self.config.coef * ahead_BT, metrics

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
        """Return the policy gradient's share, and with distributions that of the divergence.

        Metrics: those of `PolicyGradient.loss`, and `teacher_divergence`, a mean over actions.
        Raises: ValueError when the divergence is missing.
        """
        apart_BT = measured.pop("teacher_divergence_BT", None)
        total, metrics = super().loss(
            log_probs_BT,
            old_log_probs_BT,
            advantages_BT,
            mask_BT,
            ref_log_probs_BT,
            entropy_BT,
            denominators,
            **measured,
        )
        if not self.compares_distributions:
            return total, metrics
        if apart_BT is None:
            raise ValueError("distillation over distributions needs teacher_divergence_BT")
        apart_BT = terms.cleaned(apart_BT, mask_BT)
        total = total + self.config.coef * self._aggregate(apart_BT, mask_BT, denominators)
        count = float((mask_BT != 0).sum())
        return total, metrics | {
            "loss": Metric(MetricKind.SUM, float(total.detach()), count),
            "teacher_divergence": Metric(MetricKind.MEAN, float(apart_BT.detach().sum()), count),
        }


@algorithms.register("self_distillation")
class SelfDistillation(Distillation):
    """Self-distillation with a privileged context (OPSD, arXiv 2601.18734): the model before
    training reads the row's answer as a hint, and teaches the policy, which does not."""

    class Config(Distillation.Config):
        """Settings of the exact forward KL to the base weights with a hint."""

        preset: ClassVar = {
            "teacher": {"own": OwnWeights.BASE.value, "hint": "reward_spec.ground_truth"},
            "divergence": "forward_kl",
            "vocabulary": "top_k",
        }
