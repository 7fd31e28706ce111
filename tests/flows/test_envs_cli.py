"""The commands `rl-train envs list` and `envs try`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flows.cli import app

ROWS = [
    {
        "prompt": [{"role": "user", "content": "2+2?"}],
        "env_class": name,
        "reward_spec": {"method": "rule", "ground_truth": "4"},
    }
    for name in ("gsm8k_multi_turn", "checked_sum")
]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A file of rows, and a recipe whose environment is an agent."""
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path / "home"))
    rows, recipe = tmp_path / "rows.jsonl", tmp_path / "mine.yaml"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    recipe.write_text(
        "name: mine\nmodel: {path: embedded:smollm2-135m-instruct}\n"
        "data: {train: [rows.jsonl], eval: [rows.jsonl]}\n"
        'environments: {checked_sum: {agent: "deployments.agents.checked_sum:play"}}\n'
    )
    return str(rows), str(recipe)


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["envs", *args])


def test_every_environment_is_listed_with_a_sentence(files: tuple[str, str]) -> None:
    told = run("list", "--recipe", files[1])
    assert told.exit_code == 0, told.output
    lines = [line.split(maxsplit=1) for line in told.output.splitlines() if line.startswith("  ")]
    assert all(len(line) == 2 and line[1].rstrip(")").strip() for line in lines)
    assert {"gsm8k", "{verifiers:", "checked_sum"} <= {line[0] for line in lines}


def test_a_row_is_played_by_given_replies(files: tuple[str, str]) -> None:
    told = run(
        "try", "gsm8k_multi_turn", "--rows", files[0], "--reply", "#### 5", "--reply", "#### 4"
    )
    assert told.exit_code == 0, told.output
    said = told.output.splitlines()
    assert said[0].endswith("2+2?") and "assistant: #### 5" in said
    assert said[-1] == "reward: 1.04"


def test_an_agent_is_played_as_it_asks(files: tuple[str, str]) -> None:
    replies = ("--reply", "It is 5", "--reply", "It is 4")
    told = run("try", "checked_sum", "--recipe", files[1], *replies)
    assert told.exit_code == 0, told.output
    assert told.output.splitlines() == [
        "user: 2+2?",
        "assistant: It is 5",
        "user: Check your answer. Reply with the right number only.",
        "assistant: It is 4",
        "reward: 0.7",
    ]


def test_the_seats_of_a_game_are_played_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path / "home"))
    # Three sticks, of which each seat may take one or two: the second takes the last.
    told = run("try", "sticks", "--recipe", "smoke/selfplay", "--reply", "1", "--reply", "2")
    assert told.exit_code == 0, told.output
    said = told.output.splitlines()
    assert said[0].startswith("user: There are 3 sticks. Take 1 or 2.")
    assert [line for line in said if line.startswith("assistant")] == [
        "assistant as player: 1",
        "assistant as opponent: 2",
    ]
    assert said[-3:] == ["reward_player: 0", "reward_opponent: 1", "reward: 0"]


def test_what_cannot_be_played_is_said(files: tuple[str, str]) -> None:
    missing = run("try", "gsm8k", "--rows", files[0])
    assert "has no row of the environment 'gsm8k'" in str(missing.exception)
    beyond = run("try", "checked_sum", "--rows", files[0], "--row", "7")
    assert "there are 1 rows of 'checked_sum'" in str(beyond.exception)
