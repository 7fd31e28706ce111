"""A setting counts as it is written, or is refused with its file, line, key and value."""

from pathlib import Path

import pytest

from rl_core.errors import RecipeError
from rl_core.runs.recipes import load_recipe
from rl_core.runtime.settings_files import merge_overrides, read_yaml, resolved

FILE = Path("mine.yaml")


def settings(text: str, *overrides: str, folder: Path) -> dict:
    path = folder / "mine.yaml"
    path.write_text(text)
    return resolved(merge_overrides(read_yaml(path), overrides, path), path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3\n", ": line 3: the key 'a' is there twice, in lines 1 and 3; keep one"),
        (
            "top:\n  - {x: 1, y: 2,\n     x: 1}\n",
            ": line 3: the key 'x' is there twice, in lines 2 and 3",
        ),
        ("a: {x: 1, x: 2}\n", ": line 1: the key 'x' is there twice"),
        ("- 1\n", ": a recipe is a mapping of keys, got list"),
        ("", ": a recipe is a mapping of keys, got nothing"),
        ("a: [1\nb: 2\n", ": line 2: not valid YAML: while parsing a flow sequence"),
        ("a: b\n\tc: d", ": line 2: not valid YAML"),
        (
            "a: !!python/name:os.system\n",
            ": line 1: not valid YAML: could not determine a constructor",
        ),
        ("a: &a [*a]\n", ": nested too deeply, or a part contains itself"),
        ("a: " + 2000 * "[", ": nested too deeply"),
        ("a: ${b}\nb: ${a}\n", ": a: Recursive interpolation detected"),
    ],
)
def test_a_file_that_cannot_count_is_refused(text: str, said: str, tmp_path: Path):
    with pytest.raises(RecipeError) as caught:
        settings(text, folder=tmp_path)
    assert f"mine.yaml{said}" in str(caught.value)


def test_keys_of_a_merged_mapping_may_be_replaced(tmp_path: Path):
    text = "a: &a {x: 1, y: 2}\nb:\n  - &b {<<: *a, x: 3}\nc: {<<: *b, y: 5}\n"
    assert settings(text, folder=tmp_path)["c"] == {"x": 3, "y": 5}


@pytest.mark.parametrize(
    ("override", "entries"),
    [
        ("a.0.x=5", [{"x": 5, "y": 2}, "text"]),
        ("a[0].x=5", [{"x": 5, "y": 2}, "text"]),
        ("a.0={x: 5}", [{"x": 5, "y": 2}, "text"]),
        ("a.0={name: new}", [{"name": "new"}, "text"]),
        ("a.1=5", [{"x": 1, "y": 2}, 5]),
        ("a.1={x: 5}", [{"x": 1, "y": 2}, {"x": 5}]),
        ("a=[1]", [1]),
    ],
)
def test_an_entry_of_a_list_is_named_by_its_number(override: str, entries: list, tmp_path: Path):
    assert settings("a: [{x: 1, y: 2}, text]", override, folder=tmp_path)["a"] == entries


@pytest.mark.parametrize("key", ["a.2", "a.-1.x", "a.x", "a.two.x"])
def test_an_entry_that_is_not_there_is_refused(key: str, tmp_path: Path):
    with pytest.raises(RecipeError, match=r"a is a list, whose entries are a\.0 to a\.1"):
        settings("a: [{x: 1}, text]", f"{key}=5", folder=tmp_path)


def test_a_variable_that_is_set_to_nothing_counts_as_unset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ROWS_OF_THIS_TEST", "")
    assert settings("a: '${oc.env:ROWS_OF_THIS_TEST,b}'", folder=tmp_path) == {"a": "b"}
    with pytest.raises(RecipeError, match="ROWS_OF_THIS_TEST' is set, but empty"):
        settings("a: '${oc.env:ROWS_OF_THIS_TEST}'", folder=tmp_path)


@pytest.mark.parametrize(
    "override", ["data.train=['']", "data.eval=[{path: ' '}]", "model.path=''"]
)
def test_an_empty_path_is_refused_by_its_key(override: str):
    with pytest.raises(RecipeError, match=override.partition("=")[0]):
        load_recipe("text", [override])


@pytest.mark.parametrize("value", ["-1", "0", "1e99", "nan", ".inf", "99999999999999999999", "x"])
@pytest.mark.parametrize(
    "key",
    ["training.num_iterations", "rollout.max_new_tokens", "optimizer.learning_rate", "lora.rank"],
)
def test_an_absurd_number_is_refused_by_its_key(key: str, value: str):
    with pytest.raises(RecipeError, match=f"^text.yaml: {key}: .*got"):
        load_recipe("text", [f"{key}={value}"])
