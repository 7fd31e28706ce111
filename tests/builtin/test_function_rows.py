"""Rows that a function of the user's makes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_core.builtin.data.environments.files import environment_rows, materialise_environment_rows
from rl_core.builtin.data.environments.function import FunctionRows
from rl_core.data import read_rows
from rl_core.errors import DataError

HERE = "tests.builtin.test_function_rows"


def wrong(how: str) -> Iterator[Any]:
    """Rows, of which the second is none."""
    yield {"prompt": [{"role": "user", "content": "one"}]}
    if how == "raises":
        raise ValueError("out of rows")
    yield "two"


def test_rows_with_one_key_are_on_one_side_of_the_split(tmp_path: Path) -> None:
    entry = {"function": "deployments.agents.sticks:starts", "env_class": "sticks"}
    assert environment_rows(entry) is FunctionRows
    sides = {}
    for split in ("train", "eval", "all"):
        spec = FunctionRows(**entry, split=split, eval_fraction=0.4)  # type: ignore[arg-type]
        file = materialise_environment_rows(spec, tmp_path)
        rows: list[dict[str, Any]] = [dict(row) for _, row in read_rows(file)]
        sides[split] = [row["extra_info"] for row in rows]
        assert {row["env_class"] for row in rows} == {"sticks"}
    keys = {split: {(one["heap"], one["most"]) for one in sides[split]} for split in sides}
    assert not keys["train"] & keys["eval"] and keys["train"] | keys["eval"] == keys["all"]
    assert all(len(sides[split]) == 2 * len(keys[split]) for split in sides)


@pytest.mark.parametrize(
    ("function", "args", "said"),
    [
        (f"{HERE}:wrong", {"how": "raises"}, "no row 1: ValueError: out of rows"),
        (f"{HERE}:wrong", {"how": ""}, "row 1: must be a dictionary with a prompt, got 'two'"),
        (f"{HERE}:wrong", {"who": ""}, "TypeError"),
        (f"{HERE}:nobody", {}, "has no attribute 'nobody'"),
    ],
)
def test_a_function_that_makes_no_rows_is_said(
    tmp_path: Path, function: str, args: dict[str, Any], said: str
) -> None:
    with pytest.raises(DataError, match=said):
        spec = FunctionRows(function=function, args=args, env_class="x", split="all")
        materialise_environment_rows(spec, tmp_path)
