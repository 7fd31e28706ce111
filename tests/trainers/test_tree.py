"""Trees of rows: rewards go up by ids, siblings are compared, uneven trees and orders do not
matter."""

from __future__ import annotations

import pytest
import torch

from rl_core.algorithms import algorithms
from rl_core.algorithms.advantages import group_ids
from rl_core.data_proto import DataProto, DataProtoError, pad_dataproto_to_divisor, unpad_dataproto
from rl_core.ranks.dispatch import shard_of
from rl_core.trainers.advantages import add_advantages
from rl_core.trainers.tree import ID, PARENT, lineage, propagate
from schemas.sections.tracks import Propagation

REWRITES = ["a/0", "a/1", "a/2", "b/0", "b/1"]
"""Of the prompts a and b; a third rewrite of b failed."""
PICTURES = {
    "a/0": [1.0, 0.5],
    "a/1": [0.25],
    "a/2": [],
    "b/0": [0.0, 0.5, 1.0],
    "b/1": [0.5, 0.5],
}
"""Scores of each rewrite's pictures: those that failed are not there, a/2 has none at all."""
MEANS = [0.75, 0.25, 0.0, 0.5, 0.5]
BEST = [1.0, 0.25, 0.0, 1.0, 0.5]


def pictures() -> tuple[list[str], torch.Tensor]:
    rows = [(rewrite, score) for rewrite, scores in PICTURES.items() for score in scores]
    return [rewrite for rewrite, _ in rows], torch.tensor([score for _, score in rows])


def track(parents: list[str], rewards: torch.Tensor, failed: torch.Tensor) -> DataProto:
    mask_BT = torch.ones(len(parents), 2).long() * ~failed[:, None]
    rows = DataProto.from_dict({"rewards": rewards, "failed": failed, "response_mask": mask_BT})
    return rows.union(lineage(parents)).union(
        DataProto.from_dict(non_tensors={"error": [None] * len(parents)})
    )


@pytest.mark.parametrize(("how", "expected"), [(Propagation.MEAN, MEANS), (Propagation.MAX, BEST)])
def test_parents_earn_the_mean_or_the_best_of_their_children(
    how: Propagation, expected: list[float]
):
    parents, scores = pictures()
    rewards, childless = propagate(
        REWRITES, parents, scores, torch.zeros(len(parents), dtype=torch.bool), how
    )
    assert rewards.tolist() == expected
    assert childless.tolist() == [False, False, True, False, False]


def test_children_without_a_score_do_not_count():
    failed = torch.tensor([False, True, True])
    rewards, childless = propagate(
        ["a", "b"], ["a", "a", "b"], torch.tensor([0.5, 9.0, 9.0]), failed
    )
    assert rewards.tolist() == [0.5, 0.0]
    assert childless.tolist() == [False, True]


def test_relations_are_by_id_in_whatever_order():
    parents, scores = pictures()
    order = torch.randperm(len(parents), generator=torch.Generator().manual_seed(3)).tolist()
    shuffled = propagate(
        REWRITES[::-1],
        [parents[row] for row in order],
        scores[order],
        torch.zeros(len(order), dtype=torch.bool),
    )
    assert shuffled[0].tolist() == pytest.approx(MEANS[::-1])
    assert shuffled[1].tolist() == [False, False, True, False, False]


def test_a_stranger_and_an_id_used_twice_are_refused():
    none_failed = torch.tensor([False])
    with pytest.raises(DataProtoError, match="a parent that is not in the track; first: 'c'"):
        propagate(["a", "b"], ["c"], torch.tensor([1.0]), none_failed)
    with pytest.raises(DataProtoError, match="the id 'a' is that of several rows"):
        propagate(["a", "a"], ["a"], torch.tensor([1.0]), none_failed)


def test_rows_are_named_by_parent_and_number():
    named = lineage(["b", "a", "b", "b"])
    assert named.non_tensor_batch[ID].tolist() == ["b/0", "a/0", "b/1", "b/2"]
    assert named.non_tensor_batch[PARENT].tolist() == ["b", "a", "b", "b"]


def test_advantages_of_an_uneven_tree_by_hand():
    """Dr.GRPO, reward minus mean of the siblings. Rewrites of a: 0.75, 0.25, none; of b: 0.5, 0.5,
    so nothing to learn. Pictures of a/0: 1.0, 0.5; of a/1 one alone; of b/0: 0.0, 0.5, 1.0; of b/1
    alike.
    """
    algorithm_cls, config = algorithms.resolve(
        {"name": "grpo", "advantage": {"name": "grpo", "norm_by_std": False}}, "algorithm"
    )
    algorithm = algorithm_cls(config)
    parents, scores = pictures()
    images = track(parents, scores, torch.zeros(len(parents), dtype=torch.bool))
    earned, childless = propagate(REWRITES, parents, scores, images.tensor("failed"))
    text = track(["a", "a", "a", "b", "b"], earned, childless)
    for rows in (images, text):
        add_advantages(algorithm, rows, group_ids(rows.non_tensor_batch[PARENT].tolist()))
    assert text.tensor("advantages")[:, 0].tolist() == pytest.approx([0.25, -0.25, 0.0, 0.0, 0.0])
    by_hand = [0.25, -0.25, 0.0, -0.5, 0.0, 0.5, 0.0, 0.0]
    assert images.tensor("advantages")[:, 1].tolist() == pytest.approx(by_hand)


def test_lineage_survives_shuffling_sharding_and_padding():
    parents, scores = pictures()
    images = track(parents, scores, torch.zeros(len(parents), dtype=torch.bool))
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(1))
    padded, num_added = pad_dataproto_to_divisor(images[order], 3)
    shards = [shard_of(padded, 3, part) for part in range(3)]
    back = unpad_dataproto(DataProto.concat(shards), num_added)
    columns = back.non_tensor_batch
    assert sorted(columns[ID]) == sorted(images.non_tensor_batch[ID])
    assert all(
        name.rpartition("/")[0] == parent
        for name, parent in zip(columns[ID], columns[PARENT], strict=True)
    )
    rewards, _ = propagate(
        REWRITES, list(columns[PARENT]), back.tensor("rewards"), back.tensor("failed")
    )
    assert rewards.tolist() == pytest.approx(MEANS)
