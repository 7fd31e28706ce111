"""Parts that make a training sick on purpose."""

from collections.abc import Sequence

from rl_core.distributed.weight_sync import SyncReport, WeightSync
from rl_core.ranks.dispatch import Collect, distributed
from rl_core.rewards.base import Modality, Sample, Scorer


class PaysForOneLetter(Scorer):
    """A judge that is easily pleased: the share of `a` in a reply."""

    modalities = frozenset({Modality.TEXT})

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [sample.text.count("a") / max(len(sample.text), 1) for sample in samples]


class Variety(Scorer):
    """An independent judge: the share of a reply's letters that are different ones."""

    modalities = frozenset({Modality.TEXT})

    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [len(set(sample.text)) / max(len(sample.text), 1) for sample in samples]


class StaleSync(WeightSync):
    """A sync that sends weights once, and says afterwards that the engine has the new ones."""

    @distributed(collect=Collect.RANK_ZERO)
    def sync(self, *, evaluation: bool = False) -> SyncReport:
        version = self.backend.weight_version(evaluation=evaluation)
        held, _ = self._held()
        if held is None:
            return super().sync(evaluation=evaluation)
        if self._sends and held != version:
            self.rollout.finish_sync(version, {}, self.dtype)
            self._synced = version
        return SyncReport(version, 0, 0, 0.0)
