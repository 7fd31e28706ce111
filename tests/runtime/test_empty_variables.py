"""A variable that is set and empty is not the folder that the command runs in."""

from pathlib import Path

import pytest

from rl_core.data.stages.run import load_stage
from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe, parse_recipe


def test_an_empty_variable_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        'name: mine\nmodel: {path: m}\ndata: {train: ["a", "${oc.env:ROWS_X}"], eval: ["b"]}\n'
    )
    monkeypatch.setenv("ROWS_X", "")
    with pytest.raises(RecipeError, match=r"data\.train\[1\]: .*'ROWS_X' is set, but empty"):
        load_recipe(str(file))
    monkeypatch.setenv("ROWS_X", "rows.jsonl")
    assert load_recipe(str(file)).data.train == ["a", "rows.jsonl"]
    monkeypatch.delenv("OMNI3_MMPR_PUBLIC_RAW", raising=False)
    folder = load_stage("mpo").config.input_dir
    monkeypatch.setenv("OMNI3_MMPR_PUBLIC_RAW", "")
    assert load_stage("mpo").config.input_dir == folder, "as unset"


def test_an_empty_entry_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"data\.train: .*entry \[1\] is empty"):
        parse_recipe(
            {"name": "r", "model": {"path": "m"}, "data": {"train": ["a", " "], "eval": ["b"]}}
        )
