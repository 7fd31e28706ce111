import math

import pytest

from rl_core.algorithms import Metric, MetricKind, merge, merge_all, to_floats


def test_merging_parts_gives_the_number_of_the_whole() -> None:
    one = {
        "a": Metric(MetricKind.MEAN, 6.0, 3),
        "b": Metric(MetricKind.SUM, 1.0, 3),
        "c": Metric(MetricKind.MAX, 2.0, 3),
        "d": Metric(MetricKind.MIN, 2.0, 3),
        "e": Metric(MetricKind.LAST, 2.0, 3),
    }
    two = {
        "a": Metric(MetricKind.MEAN, 1.0, 1),
        "b": Metric(MetricKind.SUM, 0.5, 1),
        "c": Metric(MetricKind.MAX, 5.0, 1),
        "d": Metric(MetricKind.MIN, 5.0, 1),
        "e": Metric(MetricKind.LAST, 5.0, 1),
    }
    assert to_floats(merge_all([one, two])) == {"a": 7 / 4, "b": 1.5, "c": 5.0, "d": 2.0, "e": 5.0}


def test_a_part_without_weight_changes_nothing() -> None:
    values = {
        MetricKind.MEAN: math.nan,
        MetricKind.MAX: math.inf,
        MetricKind.MIN: -math.inf,
        MetricKind.SUM: 0.0,
    }
    for kind in MetricKind:
        empty = values.get(kind, 7.0)
        assert merge([Metric(kind, 2.0, 1), Metric(kind, empty, 0)]).result() == 2.0
    assert math.isnan(Metric(MetricKind.MEAN, 0.0, 0).result())


def test_parts_must_be_of_one_kind() -> None:
    with pytest.raises(ValueError, match="one kind"):
        merge([Metric(MetricKind.MEAN, 1.0, 1), Metric(MetricKind.SUM, 1.0, 1)])
