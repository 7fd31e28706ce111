"""Metrics of each `data_source` of a step: its share of the rows, its reward, and the share of its
rows that taught something."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

import torch

from rl_core.evaluation.measures import source_of
from rl_core.trainers.advantages import TAUGHT
from rl_core.trainers.step_record import StepRecord

_METRIC = re.compile(r"source/([^/]+)/sampled_share")


class SourceShares:
    """Measures the sources of a run once it has shown two of them; a run with one has no such
    metrics."""

    def __init__(self, history: Iterable[Mapping[str, float]]) -> None:
        """Note the sources so far. Args: history: metrics of the finished steps."""
        names = (_METRIC.fullmatch(name) for step in history for name in step)
        self._seen = {found[1] for found in names if found}

    def __call__(self, record: StepRecord | None) -> dict[str, float]:
        """Return `source/<name>/<metric>` of a step. Args: record: of the step, if there is one."""
        if record is None:
            return {}
        named = {uid: source_of(item).replace("/", "-") for uid, item in record.items.items()}
        self._seen |= set(named.values())
        if len(self._seen) < 2:
            return {}
        rows: dict[str, list[tuple[float, bool]]] = {}
        for uid, reward, taught in _rows(record):
            name = named.get(uid) or named.get(uid.partition("/")[0])
            if name is not None:
                rows.setdefault(name, []).append((reward, taught))
        total = sum(map(len, rows.values()))
        metrics = {}
        for name, found in rows.items():
            metrics[f"source/{name}/sampled_share"] = len(found) / total
            metrics[f"source/{name}/reward_mean"] = sum(one for one, _ in found) / len(found)
            metrics[f"source/{name}/learning_share"] = sum(one for _, one in found) / len(found)
        return metrics


def _rows(record: StepRecord) -> Iterator[tuple[str, float, bool]]:
    """Yield uid, reward and whether it had an advantage, of each row of the first track that
    learns."""
    learning = []
    for portions in record.tracks.values():
        if any(one.trained and TAUGHT in one.names for one in portions):
            learning = portions
            break
    for portion in learning:
        batch = portion.fetch(["uid", "rewards", TAUGHT])
        rewards_B = batch.tensor("rewards")
        taught_B = torch.zeros(len(rewards_B), dtype=torch.bool)
        if portion.trained:
            taught_B = batch.tensor(TAUGHT)
        uids = map(str, batch.non_tensor_batch["uid"])
        yield from zip(uids, rewards_B.tolist(), taught_B.tolist(), strict=True)
