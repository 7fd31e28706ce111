"""The command as a person meets it: in a process of its own, by its exit code and what it
prints."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.command import rl_train

GOOD: dict[str, Any] = {
    "prompt": [{"role": "user", "content": "1 + 2"}],
    "env_class": "gsm8k",
    "reward_spec": {"method": "rule", "ground_truth": "3"},
}


def refusal(home: Path, *arguments: str) -> str:
    done = rl_train(home, *arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stdout + done.stderr
    return done.stderr


def test_help_exits_cleanly(tmp_path: Path):
    done = rl_train(tmp_path, "--help")
    assert done.returncode == 0
    assert "validate" in done.stdout


def test_dry_run_shows_the_plan_and_leaves_no_run(tmp_path: Path):
    done = rl_train(tmp_path, "run", "text", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert {"name: text", "cache", "devices", "memory"} <= {
        line if line.startswith("name") else line.split(" ")[0] for line in done.stdout.splitlines()
    }
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "txt"], "unknown recipe 'txt' (did you mean 'text'?)"),
        (
            ["run", "text", "rollout.temprature=1"],
            "rollout.temprature: unknown key (did you mean 'temperature'?)",
        ),
        (["validate", "no-such-file.jsonl"], "no-such-file.jsonl"),
    ],
)
def test_user_error_is_one_message(arguments: list[str], said: str, tmp_path: Path):
    assert said in refusal(tmp_path, *arguments)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ('{"prompt": ', "field line: unreadable line, got invalid JSON at column 11"),
        (
            GOOD | {"prompt": [{"role": "assistant", "content": "x"}]},
            "field prompt: no user message",
        ),
        (
            GOOD | {"prompt": [*GOOD["prompt"], {"role": "bot", "content": "x"}]},
            "field prompt[1].role: unknown role, got 'bot'; expected system, user or assistant",
        ),
        (GOOD | {"reward_spec": {"method": "rule"}}, "field reward_spec: missing ground_truth"),
        (
            GOOD | {"env_class": "gsm9k"},
            "got 'gsm9k'; expected a registered environment (did you mean 'gsm8k'?)",
        ),
    ],
    ids=["bad-json", "no-user-message", "wrong-role", "no-ground-truth", "unknown-environment"],
)
def test_bad_row_is_named_by_file_and_line(row: dict[str, Any] | str, said: str, tmp_path: Path):
    rows = [
        *[json.dumps(GOOD)] * 16,
        row if isinstance(row, str) else json.dumps(row),
        json.dumps(GOOD),
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    message = refusal(tmp_path / "home", "validate", str(path))
    assert "1 of 18 rows are refused" in message
    assert f"{path}:17 " in message
    assert said in message


def test_empty_file_is_refused(tmp_path: Path):
    path = tmp_path / "empty.jsonl"
    path.touch()
    assert f"{path}: the file is empty" in refusal(tmp_path / "home", "validate", str(path))


def test_good_file_passes(tmp_path: Path):
    path = tmp_path / "good.jsonl"
    path.write_text(json.dumps(GOOD) + "\n", encoding="utf-8")
    done = rl_train(tmp_path / "home", "validate", str(path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("1 of 1 rows are good")


def test_debug_shows_the_traceback(tmp_path: Path):
    done = rl_train(tmp_path, "run", "txt", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "RecipeError" in done.stderr


@pytest.fixture
def forgetful_model(tiny_model_dir: Path, tmp_path: Path) -> str:
    """A model whose chat template shows the last message alone."""
    shutil.copytree(tiny_model_dir, tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages[-1].content }}")
    return str(tmp_path / "model")


@pytest.mark.long
def test_several_turns_that_a_template_cannot_carry_are_refused_at_the_dry_run(
    forgetful_model: str, tmp_path: Path
):
    arguments = ["run", "smoke/text", f"model.path={forgetful_model}", "--dry-run"]
    assert rl_train(tmp_path, *arguments).returncode == 0
    said = refusal(tmp_path, *arguments, "environments.search={}")
    assert (
        "environment search has several turns: the chat template leaves out the assistant's "
        "earlier turns" in said
    )
    assert rl_train(tmp_path, *arguments, "environments.search.max_turns=1").returncode == 0
