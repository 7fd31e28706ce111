"""What the names of a rollout's rows have to be, in every domain."""

from collections import Counter
from typing import Any


def assert_named(rollout: Any, column: str = "uid") -> None:
    """Rows that share `column` share a group, and each has a name of its own in it."""
    columns = rollout.non_tensor_batch
    groups, samples = columns["group_id"].tolist(), columns["sample_id"].tolist()
    assert groups == columns[column].tolist()
    assert len(set(samples)) == len(samples)
    numbers = Counter[str]()
    for group, sample in zip(groups, samples, strict=True):
        assert sample == f"prompt:{group}:sample:{numbers[group]}"
        numbers[group] += 1
