"""Lists of what there is: lines for a program, JSON, and no trace of having asked."""

import json
from pathlib import Path

import pytest

from flows.lists.listing import print_list
from tests.command import rl_train


def test_lists_are_tab_separated_where_nobody_reads_along(capsys: pytest.CaptureFixture[str]):
    entries = [{"run": "a\tb", "score": 0.5}, {"run": "c\x1b[31m", "score": None}]
    print_list("Runs", ("run", "score"), entries, as_json=False)
    assert capsys.readouterr().out.splitlines() == ["run\tscore", "a b\t0.500", "c\\x1b[31m\t"]


def test_lists_as_json_keep_their_values(capsys: pytest.CaptureFixture[str]):
    print_list("Runs", ("run", "score"), [{"run": "ä", "score": 0.12345}], as_json=True)
    assert json.loads(capsys.readouterr().out) == [{"run": "ä", "score": 0.12345}]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["runs"], 0), (["models"], 0), (["status"], 1), (["lineage", "models:/nobody/1"], 2)],
)
def test_a_question_makes_no_database(arguments: list[str], code: int, tmp_path: Path):
    done = rl_train(tmp_path, *arguments)
    assert done.returncode == code, done.stderr
    assert not list(tmp_path.rglob("*.db"))


def test_every_shipped_recipe_says_what_it_is(tmp_path: Path):
    listed = json.loads(rl_train(tmp_path, "recipes", "--json").stdout)
    assert {"recipe", "chain", "profile"} == {one["kind"] for one in listed}
    assert [one["name"] for one in listed if not one["about"]] == []


def test_the_version_and_short_help(tmp_path: Path):
    assert rl_train(tmp_path, "--version").stdout.startswith("rl-train 0.")
    assert "--dry-run" in rl_train(tmp_path, "run", "-h").stdout


def test_config_diff_lists_what_a_recipe_states(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text(
        "name: mine\nmodel: {path: a/b}\nrollout: {max_new_tokens: 7}\n"
        "data: {train: [a.jsonl], eval: [b.jsonl]}\n"
    )
    done = rl_train(tmp_path / "home", "config", "diff", str(tmp_path / "mine.yaml"), "--json")
    found = {one["key"]: one["default"] for one in json.loads(done.stdout)}
    assert found["rollout.max_new_tokens"] == 256
    assert set(found) == {
        *("name", "model.path", "rollout.max_new_tokens", "data.train", "data.eval"),
    }
