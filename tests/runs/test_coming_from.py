"""docs/coming-from.md: each key of theirs is answered, each recipe of ours passes a dry run."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from rl_core.errors import RecipeError
from rl_core.runs.recipes import parse_recipe
from schemas.sections.checks.foreign_keys import foreign_keys
from tests.command import rl_train

PAGE = (Path(__file__).parents[2] / "docs" / "coming-from.md").read_text(encoding="utf-8")
BLOCKS = [
    (kind, yaml.safe_load(text))
    for kind, text in re.findall(r"```yaml ([^\n]+)\n(.*?)```", PAGE, flags=re.DOTALL)
]
THEIRS = [(kind, values) for kind, values in BLOCKS if kind != "here"]
OURS = {values["name"]: values for kind, values in BLOCKS if kind == "here"}
MINIMAL = {"name": "mine", "model": {"path": "m"}}


def leaves(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and place not in foreign_keys():
        for key, inner in value.items():
            yield from leaves(inner, f"{place}.{key}".lstrip("."))
    else:
        yield place, value


def nested(place: str, value: Any) -> dict[str, Any]:
    for part in reversed(place.split(".")):
        value = {part: value}
    return value


def test_every_system_has_its_recipe_beside_ours():
    systems = {one.system for one in foreign_keys().values()}
    assert {kind for kind, _ in THEIRS} == systems
    assert [kind == "here" for kind, _ in BLOCKS] == [False, True] * len(systems)


@pytest.mark.parametrize(
    ("system", "place", "value"),
    [(system, *leaf) for system, values in THEIRS for leaf in leaves(values)],
)
def test_each_key_of_theirs_is_answered(system: str, place: str, value: Any):
    recipe = {**MINIMAL, "data": {"train": ["a"], "eval": ["b"]}}
    top = place.split(".")[0]
    written = nested(place, value)[top]
    recipe[top] = {**recipe.get(top, {}), **written} if isinstance(written, dict) else written
    with pytest.raises(RecipeError) as caught:
        parse_recipe(recipe)
    said = str(caught.value)
    reason = f"{place} has no equivalent here: "
    assert f"{place} is {system}'s name; here it is " in said or reason in said, said


@pytest.mark.slow
@pytest.mark.parametrize("name", OURS)
def test_ours_passes_a_dry_run(name: str, tmp_path: Path):
    folder = tmp_path / "data" / "gsm8k"
    folder.mkdir(parents=True)
    for split in ("train", "test", "validation"):
        row = {
            "prompt": [{"role": "user", "content": split}],
            "reward_model": {"ground_truth": "4"},
        }
        pd.DataFrame([row]).to_parquet(folder / f"{split}.parquet")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a cat\n")
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("a dog on a sofa\n")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(OURS[name]))
    files = {"DATA_PATH": str(prompts), "EVAL_DATA_PATH": str(held_out)}
    done = rl_train(tmp_path / "home", "run", str(recipe), "--dry-run", HOME=str(tmp_path), **files)
    # Without a network nothing can be said against it but that.
    offline = done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.returncode == 0 or (offline and "HF_HUB_OFFLINE" in done.stderr), done.stderr
    assert f"name: {name}" in done.stdout
