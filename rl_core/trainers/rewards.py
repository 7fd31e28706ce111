"""The reward of a rollout: the scorers' scores, added to the environments' rewards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rl_core.algorithms.metrics import to_floats
from rl_core.data_proto import DataProto
from rl_core.distributed import DataProtoRef
from rl_core.envs.faults import no_verdicts
from rl_core.models.decoding.request import StopReason
from rl_core.rewards.combine import Earned, combine, score_metrics
from rl_core.rewards.resolve import resolve_scorers
from rl_core.rewards.service import ERRORS, SCORES, VERDICTS
from rl_core.rollout.sample_ids import GROUP, named_error
from rl_core.trainers.handles import ScorersHandle
from rl_core.trainers.masking import add_at_the_end, drop_rewards, leave_out
from rl_core.trainers.step_record import column_names
from rl_core.trainers.track import Rollouts
from schemas.recipe import Recipe
from schemas.sections.rewards import FailurePolicy, RewardServiceConfig, Truncation

PART = "reward/"
"""Prefix of the columns with the parts of the reward."""
SCORED = "score/"
"""Prefix of the columns with each scorer's unweighted scores."""
ASKED = (
    "prompt",
    "replies",
    "ground_truth",
    "stop_reason",
    "last_reply_tokens",
    "failed",
    "response_mask",
)
MEDIA = ("images", "videos", "metadata", "row", "turns", GROUP)
"""Columns that scorers get in addition to `ASKED`, where a batch has them: pictures and videos, the
row's other columns, the messages after the prompt, and the group whose replies are compared."""


@dataclass
class ServiceScorer:
    """The `Scorer` of a track that adds the scores of the recipe's scorers to the environments'
    rewards."""

    service: ScorersHandle | None
    """Service that runs the scorers; None if the recipe names none."""
    weights: dict[str, float]
    """Weights of the service's scorers, by key, in order."""
    config: RewardServiceConfig
    max_length: int | None
    """Length limit of one reply; None if all rows have the same number of actions."""

    @classmethod
    def of(
        cls, recipe: Recipe, service: ScorersHandle | None, max_length: int | None
    ) -> ServiceScorer:
        """Create the scorer of a recipe. Args: service: runs the recipe's scorers."""
        weights = {}
        for key, _, config in resolve_scorers(recipe.rewards):
            weights[key] = config.weight
        return cls(service, weights, recipe.reward_service, max_length)

    def add_rewards(self, rollout: DataProtoRef, rollouts: Rollouts) -> dict[str, float]:
        """Add scores to the rewards as `add_scores` does; return its metrics."""
        if self.max_length is None:
            limit = rollout.tensor("response_mask").shape[1]
        else:
            limit = self.max_length
        return add_scores(rollout, self.service, self.weights, self.config, limit)


def score_column(key: str) -> str:
    """Return the name of the column in which `add_scores` puts a scorer's scores, [B]; NaN if it
    failed."""
    return SCORED + key


def add_scores(
    rollout: DataProtoRef,
    service: ScorersHandle | None,
    weights: Mapping[str, float],
    config: RewardServiceConfig,
    max_length: int,
) -> dict[str, float]:
    """Put the whole reward into `rewards` and `turn_rewards`, and its parts into columns of their
    own.

    Args: weights: of the service's scorers, in order. max_length: limit of one reply. Returns:
    metrics per scorer. Raises: RewardError on rows without a score, if `on_failure` is `fail`.
    """
    if service is None and config.truncated is Truncation.KEEP:
        return {}
    scores_BK, errors, metrics = torch.zeros(len(rollout), 0), [{} for _ in range(len(rollout))], {}
    verdicts: list[dict[str, str]] = []
    if service is not None:
        # Scorers fetch what they look at themselves; pictures do not pass through here.
        found = service.score(
            rollout.select([key for key in (*ASKED, *MEDIA) if key in rollout.keys])
        )
        scores_BK, errors = found.tensor(SCORES), list(found.non_tensor_batch[ERRORS])
        verdicts = list(found.non_tensor_batch[VERDICTS])
        metrics = to_floats(found.meta_info.get("metrics", {}))
    earned = _earned(rollout)
    rewarded = combine(earned, scores_BK, dict(weights), config, max_length)
    columns = {"rewards": rewarded.rewards_B}
    columns |= {PART + key: part_B for key, part_B in rewarded.parts.items()}
    columns |= {
        score_column(key): scores_B
        for key, scores_B in zip(weights, scores_BK.unbind(1), strict=True)
    }
    unscored_B = rewarded.unscored_B
    texts = {VERDICTS: verdicts} if any(verdicts) else {}
    changed = DataProto.from_dict(columns, texts)
    if bool(unscored_B.any()):
        reasons = _reasons(errors, weights)
        if config.on_failure is FailurePolicy.FAIL:
            raise no_verdicts(
                _complaint(rollout, unscored_B, reasons), [one for one in reasons if one]
            )
        changed = DataProto.from_dict(
            columns | {"failed": earned.failed_B | unscored_B},
            texts | _with_reasons(rollout, reasons),
        )
    add_at_the_end(rollout, rewarded.added_B)
    if bool(rewarded.dropped_B.any()):
        drop_rewards(rollout, rewarded.dropped_B)
    if bool(unscored_B.any()):
        leave_out(rollout, unscored_B)
    rollout.replace(changed)
    return (
        score_metrics(scores_BK, list(weights), earned)
        | metrics
        | {"unscored_rows": float(unscored_B.sum())}
    )


def reward_parts(
    rollout: DataProto | DataProtoRef, rows_B: torch.Tensor | slice
) -> dict[str, torch.Tensor]:
    """Return the parts of the reward of these rows by name, [B] each; none without scorers.

    Args: rows_B: [B] bool, or a slice.
    """
    parts = sorted(key for key in column_names(rollout) if key.startswith(PART))
    return {key.removeprefix(PART): rollout.tensor(key)[rows_B] for key in parts}


def _earned(rollout: DataProtoRef) -> Earned:
    reasons = rollout.non_tensor_batch["stop_reason"]
    return Earned(
        rewards_B=rollout.tensor("rewards"),
        lengths_B=rollout.tensor("last_reply_tokens"),
        truncated_B=torch.tensor([StopReason(reason).is_truncated for reason in reasons]),
        failed_B=rollout.tensor("failed"),
    )


def _reasons(errors: list[dict[str, str]], weights: Mapping[str, float]) -> list[str | None]:
    counted = []
    for one in errors:
        counted.append({key: reason for key, reason in one.items() if weights[key]})
    reasons: list[str | None] = []
    for one in counted:
        reasons.append("; ".join(f"reward {key}: {reason}" for key, reason in one.items()) or None)
    return reasons


def _with_reasons(rollout: DataProtoRef, reasons: list[str | None]) -> dict[str, list[str | None]]:
    known = rollout.non_tensor_batch["error"]
    return {"error": [error or reason for error, reason in zip(known, reasons, strict=True)]}


def _complaint(rollout: DataProtoRef, unscored_B: torch.Tensor, reasons: list[str | None]) -> str:
    row = unscored_B.tolist().index(True)
    first = named_error(rollout, row, reasons[row])
    return (
        f"{int(unscored_B.sum())} of {len(unscored_B)} rows have no score after all tries "
        f"(reward_service.on_failure: fail); first: {first}"
    )
