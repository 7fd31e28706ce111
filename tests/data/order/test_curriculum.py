"""Prompts drawn by pass rate: what is half solved comes most often; a saved position continues
exactly."""

import json
from collections import Counter

import pytest

from rl_core.data.order.curriculum import CurriculumSource
from rl_core.data.order.source_of_recipe import training_source
from rl_core.errors import DataError
from schemas.sections.data import CurriculumConfig

UIDS = [f"row-{row}" for row in range(9)]


def source(seed: int = 0, batch_size: int = 3, pass_mark: float = 1.0) -> CurriculumSource[int]:
    return CurriculumSource(list(range(9)), UIDS, batch_size, seed, floor=0.05, pass_mark=pass_mark)


def test_half_solved_prompts_come_most_often() -> None:
    prompts = source(batch_size=1)
    # Rows 0-2 are solved and 6-8 hopeless, with the least weight of 0.05; 3-5 are half solved, with
    # 1.
    for row, uid in enumerate(UIDS):
        right = (100, 50, 0)[row // 3]
        prompts.observe([uid] * 100, [1.0] * right + [0.0] * (100 - right))
    drawn = Counter(row for _ in range(800) for row in prompts.next_batch())
    half = sum(drawn[row] for row in (3, 4, 5))
    assert half / 800 == pytest.approx(3 / 3.3, abs=0.05)
    assert all(drawn[row] for row in range(9)), "what is solved or hopeless is still looked at"


def test_a_batch_holds_no_prompt_twice() -> None:
    prompts = source(batch_size=9)
    assert sorted(prompts.next_batch()) == list(range(9))


def test_what_is_observed_is_counted_by_hand() -> None:
    prompts = source(pass_mark=0.5)
    metrics = prompts.observe(["row-0", "row-0", "row-2"], [0.5, 0.4, 1.0])
    assert metrics == {
        "curriculum/pass_rate": pytest.approx(2 / 3),
        "curriculum/tried_share": pytest.approx(2 / 9),
    }
    assert prompts.state_dict()["counts"] == {"row-0": [1, 2], "row-2": [1, 1]}


def test_a_saved_position_continues_exactly() -> None:
    first = source()
    first.next_batch()
    first.observe(["row-1"] * 4, [1.0, 1.0, 0.0, 0.0])
    resumed = source()
    resumed.observe(["row-8"], [1.0])
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert [resumed.next_batch() for _ in range(5)] == [first.next_batch() for _ in range(5)]
    assert resumed.state_dict() == first.state_dict()


def test_another_seed_draws_other_batches() -> None:
    assert [source(0).next_batch() for _ in range(4)] != [source(1).next_batch() for _ in range(4)]


def test_a_position_of_other_rows_or_another_order_is_refused() -> None:
    with pytest.raises(DataError, match="the saved curriculum has seed 1, this run has 0"):
        source().load_state_dict(source(seed=1).state_dict())
    with pytest.raises(DataError, match=r"counts rows that are not here, the first 'gone'"):
        source().load_state_dict(source().state_dict() | {"counts": {"gone": [0, 1]}})
    plain = training_source([{"uid": uid} for uid in UIDS], 3, 0, None)
    with pytest.raises(DataError, match="curriculum"):
        source().load_state_dict(
            {"seed": 0, "num_items": plain.state_dict()["num_items"] + 1, "counts": {}}
        )


def test_the_recipe_chooses_the_curriculum() -> None:
    chosen = training_source(
        [{"uid": uid} for uid in UIDS], 3, 0, None, CurriculumConfig(floor=0.2)
    )
    assert isinstance(chosen, CurriculumSource) and chosen.floor == 0.2
    with pytest.raises(DataError, match="a batch of 10 prompts out of 9 rows"):
        training_source([{"uid": uid} for uid in UIDS], 10, 0, None, CurriculumConfig())
