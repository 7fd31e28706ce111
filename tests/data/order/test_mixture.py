"""Properties of blended sources and of the order a recipe asks for."""

import json
from collections import Counter
from typing import Any

import pytest

from rl_core.data.order.mixture import BlendedSource
from rl_core.data.order.prompt_source import PromptSource
from rl_core.data.order.source_of_recipe import training_source
from rl_core.errors import DataError

ITEMS = {"a": [f"a{i}" for i in range(5)], "b": [f"b{i}" for i in range(3)], "c": ["c0"]}
WEIGHTS = {"a": 5, "b": 3, "c": 2}


def source() -> BlendedSource[str]:
    return BlendedSource(ITEMS, WEIGHTS, batch_size=4, seed=1)


def test_after_any_number_of_draws_every_source_has_its_share() -> None:
    blend, drawn = source(), Counter()
    for number in range(1, 60):
        drawn.update(row[0] for row in blend.next_batch())
        assert all(
            abs(drawn[name] - weight / 10 * 4 * number) <= 1 for name, weight in WEIGHTS.items()
        )


def test_each_source_is_shuffled_by_itself_and_sees_every_row_each_epoch() -> None:
    blend = source()
    rows = [row for _ in range(50) for row in blend.next_batch() if row.startswith("a")]
    epochs = [rows[i : i + 5] for i in range(0, 100, 5)]
    assert all(sorted(epoch) == ITEMS["a"] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_resumed_blend_equals_the_uninterrupted() -> None:
    whole_source = source()
    whole = [whole_source.next_batch() for _ in range(12)]
    for cut in range(12):
        first, second = source(), source()
        for _ in range(cut):
            first.next_batch()
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert [second.next_batch() for _ in range(12 - cut)] == whole[cut:]


def test_state_of_another_blend_is_refused() -> None:
    other = BlendedSource(ITEMS, {**WEIGHTS, "a": 1}, 4, 1)
    with pytest.raises(DataError, match="saved data position is of the blend"):
        other.load_state_dict(source().state_dict())


@pytest.mark.parametrize(
    "weights", [{"a": 1}, {**WEIGHTS, "d": 1}, {**WEIGHTS, "a": 0}, {**WEIGHTS, "a": float("inf")}]
)
def test_weights_name_every_source_and_are_positive(weights: dict[str, float]) -> None:
    with pytest.raises(DataError, match="blend: weights"):
        BlendedSource(ITEMS, weights, 4, 1)


def items(**counts: int) -> list[dict[str, Any]]:
    return [
        {"uid": f"{name}{i}", "env_extras": {} if name == "other" else {"data_source": name}}
        for name, count in counts.items()
        for i in range(count)
    ]


def test_recipe_blends_by_data_source() -> None:
    blend = training_source(items(gsm8k=30, other=2), 4, 0, {"gsm8k": 1, "other": 3})
    drawn = Counter(item["uid"][:5] for _ in range(10) for item in blend.next_batch())
    assert (drawn["gsm8k"], drawn["other"]) == (10, 30)
    with pytest.raises(
        DataError, match=r"data\.blend names \['gsm8k'\]; .* \['gsm8k', 'other'\]: name each once"
    ):
        training_source(items(gsm8k=3, other=2), 4, 0, {"gsm8k": 1})


def test_without_a_blend_all_rows_are_alike() -> None:
    assert isinstance(training_source(items(gsm8k=3, other=2), 4, 0, None), PromptSource)
