"""Log lines as rows to learn from, and as prompts whose answer only the reward knows."""

import json
from pathlib import Path

from rl_core.builtin.data.log_lines import LogLinesSpec, materialise_log_lines, planned_log_lines


def rows(folder: Path, **values: object) -> list[dict]:
    path = materialise_log_lines(LogLinesSpec.model_validate(values), folder)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_prompts_ask_what_conversations_show(tmp_path: Path) -> None:
    shown = rows(tmp_path, log_lines=5, seed=1)
    asked = rows(tmp_path, log_lines=5, seed=1, form="prompt")
    for one, other in zip(shown, asked, strict=True):
        question, answer = one["messages"]
        assert other["prompt"] == [question] and "messages" not in other
        assert other["reward_spec"]["ground_truth"] == answer["content"]
        assert one["env_class"] == other["env_class"] == "exact_match"


def test_the_file_of_conversations_keeps_its_name(tmp_path: Path) -> None:
    spec = LogLinesSpec(log_lines=64, seed=1)
    assert planned_log_lines(spec, tmp_path).name == "log-lines-train-aa880adf0d8b.jsonl"
