"""Properties of procedural data."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rl_core.builtin.data.reasoning_problems import GenerateSpec, materialise, planned_path
from rl_core.errors import DataError
from schemas.rows.prompt_rows import validate_rows

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def spec(**changes: Any) -> GenerateSpec:
    return GenerateSpec(**{"task": "chain_sum", "size": 30, "seed": 1, "config": SUMS, **changes})


def rows(spec: GenerateSpec, folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in materialise(spec, folder).read_text().splitlines()]


def test_rows_are_valid_and_as_many_as_asked_for(tmp_path: Path) -> None:
    made = rows(spec(system_prompt="Add.", prompt_suffix=" Be brief."), tmp_path)
    kinds = {"reasoning_gym": frozenset({"string"})}
    assert len(made) == 30
    assert validate_rows(made, file="f", first_row=1, allowed_env_classes=kinds) == []
    assert made[0]["prompt"][0] == {"role": "system", "content": "Add."}
    assert made[0]["prompt"][1]["content"] == made[0]["extra_info"]["question"] + " Be brief."


@pytest.mark.parametrize("eval_seed", [1, 2])
def test_train_and_eval_share_no_question(tmp_path: Path, eval_seed: int) -> None:
    train, held_out = (
        {row["extra_info"]["question"] for row in rows(made, tmp_path)}
        for made in (spec(size=120), spec(size=20, split="eval", seed=eval_seed))
    )
    assert (len(train), len(held_out), train & held_out) == (120, 20, set())


def test_row_can_be_drawn_again_from_its_extra_info(tmp_path: Path) -> None:
    import reasoning_gym

    row = rows(spec(), tmp_path)[-1]
    info = row["extra_info"]
    dataset = reasoning_gym.create_dataset(
        info["task"], seed=info["seed"], size=info["index"] + 1, **info["config"]
    )
    entry = dataset[info["index"]]
    assert (entry["question"], entry["answer"]) == (
        info["question"],
        row["reward_spec"]["ground_truth"],
    )


def test_existing_file_is_kept(tmp_path: Path) -> None:
    path = planned_path(spec(), tmp_path)
    assert not path.exists()
    assert materialise(spec(), tmp_path) == path
    path.write_text("kept")
    assert materialise(spec(), tmp_path).read_text() == "kept"


def test_every_setting_has_its_own_file(tmp_path: Path) -> None:
    specs = [
        spec(),
        spec(seed=2),
        spec(size=31),
        spec(split="eval"),
        spec(prompt_suffix="x"),
        spec(config={}),
    ]
    assert len({planned_path(made, tmp_path) for made in specs}) == len(specs)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"task": "chain_sums"},
            "unknown reasoning_gym task 'chain_sums' .did you mean 'chain_sum'",
        ),
        (
            {"config": {"min_term": 2}},
            "unknown setting 'min_term' in config .did you mean 'min_terms'",
        ),
        ({"config": {"min_terms": 0}}, "config .* is refused: min_terms must be positive"),
        ({"config": {"seed": 3}}, "seed in config; set it beside config"),
        (
            {"size": 500},
            r"only \d+ different train questions in \d+ draws, size asks for 500; lower size",
        ),
        ({"split": "eval", "eval_fraction": 0.0}, "leaves no rows for eval"),
    ],
)
def test_impossible_spec_is_refused_and_writes_nothing(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        materialise(spec(**changes), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_unknown_key_is_refused() -> None:
    with pytest.raises(ValidationError, match="sizes"):
        spec(sizes=3)
