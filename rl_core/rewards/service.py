"""Several scorers on one rollout: all run concurrently, in batches, on this rank's rows.

The results keep failures apart from scores: NaN and a reason, never 0. `combine.py` turns them into
rewards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rl_core.algorithms.metrics import Metric, MetricKind
from rl_core.errors import RewardError
from rl_core.ranks.dispatch import Collect, Dispatch, distributed, num_real_rows
from rl_core.rewards.asking import Asking, Scored
from rl_core.rewards.base import Sample
from rl_core.rewards.resolve import resolve_scorers
from schemas.sections.rewards import RewardServiceConfig

if TYPE_CHECKING:
    from rl_core.data_proto import DataProto
    from rl_core.ranks.rank_info import RankInfo

SCORES, ERRORS, VERDICTS = "scores", "score_errors", "verdicts"


@dataclass(frozen=True)
class Scores:
    """Results of all scorers, by key."""

    by_key: dict[str, Scored]
    weights: dict[str, float]

    @property
    def keys(self) -> list[str]:
        return list(self.by_key)


class RewardService:
    """The scorers of a recipe's `rewards`."""

    needs_rank_info = True

    def __init__(
        self,
        blocks: Sequence[Mapping[str, object]],
        config: RewardServiceConfig | None = None,
        *,
        rank_info: RankInfo | None = None,
        device: str = "cpu",
    ) -> None:
        """Create the scorers.

        Args: blocks: `{name: ..., weight: ...}` each. rank_info: gives the device of the models in
        a worker; elsewhere `device` does. Raises: RecipeError naming the entry.
        """
        config = config or RewardServiceConfig()
        device = device if rank_info is None else str(rank_info.device)
        self.asked = {
            key: Asking(key, cls(settings, device), config)
            for key, cls, settings in resolve_scorers(blocks)
        }
        self.weights = {key: asking.scorer.config.weight for key, asking in self.asked.items()}

    @distributed(Dispatch.DP_SCATTER_HEAD, Collect.JOIN)
    def score(self, rollout: DataProto) -> DataProto:
        """Score rows of a rollout.

        Args: rollout: object columns `prompt`, and, if present, `replies`, `ground_truth`,
        `stop_reason`, `images`, `videos`, `metadata`; tensors `last_reply_tokens`.
        Returns: `scores` [B, K], one column per scorer in the recipe's order, NaN where there is
        none; the reasons in the object column `score_errors` and the words of judges in `verdicts`,
        `{key: text}` each. Raises: ServiceError or RecipeError when a scorer's server or settings
        refuse all samples.
        """
        import torch

        from rl_core.data_proto import DataProto
        from rl_core.rewards.samples import samples_of, with_groups

        samples = samples_of(rollout)[: num_real_rows(rollout)]
        # A row without a verdict has nothing to add to.
        if rollout.batch is None:
            failed = []
        else:
            failed = rollout.batch.get("failed", torch.zeros(len(rollout))).tolist()
        rows = [row for row in range(len(samples)) if not (failed and failed[row])]
        groups = rollout.non_tensor_batch.get("group_id")
        asked = [samples[row] for row in rows]
        asked = asked if groups is None else with_groups(asked, [groups[row] for row in rows])
        found = self.score_samples(asked)
        scores_BK = torch.full((len(rollout), len(self.asked)), float("nan"))
        errors: list[dict[str, str]] = [{} for _ in range(len(rollout))]
        verdicts: list[dict[str, str]] = [{} for _ in range(len(rollout))]
        for column, (key, scored) in enumerate(found.by_key.items()):
            scores_BK[rows, column] = torch.tensor(scored.scores, dtype=torch.float32)
            for row, reason in zip(rows, scored.errors, strict=True):
                if reason is not None:
                    errors[row][key] = reason
            for place, text in scored.verdicts.items():
                verdicts[rows[place]][key] = text
        metrics: dict[str, Metric] = {}
        for key in found.by_key:
            metrics.update(self._metrics(key, found))
        texts = {ERRORS: errors, VERDICTS: verdicts}
        return DataProto.from_dict({SCORES: scores_BK}, texts, {"metrics": metrics})

    def _metrics(self, key: str, found: Scores) -> Iterator[tuple[str, Metric]]:
        """Yield what a scorer counted, and the mean of each of its criteria."""
        scored = found.by_key[key]
        yield f"reward/{key}/retried", Metric(MetricKind.SUM, scored.num_retried, 1)
        for name, count in self.asked[key].scorer.counts().items():
            yield f"reward/{key}/{name}", Metric(MetricKind.SUM, count, 1)
        criteria: dict[str, list[float]] = {}
        for parts in scored.parts.values():
            for name, value in parts.items():
                criteria.setdefault(name, []).append(value)
        for name, values in criteria.items():
            yield (
                f"reward/{key}/criterion/{name}",
                Metric(MetricKind.MEAN, math.fsum(values), len(values)),
            )

    def score_samples(self, samples: Sequence[Sample], keys: Sequence[str] | None = None) -> Scores:
        """Score samples.

        Args: keys: scorers to run; unset runs all. Raises: RewardError on an unknown key.
        """
        wanted = list(self.asked) if keys is None else list(dict.fromkeys(keys))
        if unknown := sorted(set(wanted) - set(self.asked)):
            raise RewardError(f"no rewards {unknown} here; there are {sorted(self.asked)}")
        questions = {key: self.asked[key].start(samples) for key in wanted}
        found = {key: question.result() for key, question in questions.items()}
        for key, scored in found.items():
            if scored.refusal is not None and all(scored.errors):
                raise type(scored.refusal)(f"reward {key}: {scored.refusal}") from scored.refusal
        return Scores(found, self.weights)

    def close(self) -> None:
        """End the scorers."""
        for asking in self.asked.values():
            asking.scorer.close()
