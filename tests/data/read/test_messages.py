"""Messages as other systems write them: what a chat template can show is trained on as it is."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_core.data import read_rows
from rl_core.data.check.files import check_files
from rl_core.data.check.parts import CheckSettings
from rl_core.data.prepare.chat_template import ChatTemplate
from rl_core.envs import accepted_ground_truths
from rl_core.errors import ModelError
from schemas.receipts import ValidationReport

REST = {"env_class": "gsm8k", "reward_spec": {"ground_truth": "4"}}
USER = {"role": "user", "content": "2+2?"}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "add", "arguments": json.dumps({"a": 2})},
}
TALK = [
    {"role": "developer", "content": "Use tools."},
    {"role": "user", "content": [{"type": "text", "text": "2"}, {"type": "text", "text": "+2?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": 'it is "4"'},
]


def written(tmp_path: Path, suffix: str, *prompts: Any) -> Path:
    rows = [{"prompt": prompt, **REST} for prompt in prompts]
    file = tmp_path / f"rows{suffix}"
    if suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def checked(file: Path) -> ValidationReport:
    folders: dict[str, Any] = {
        "rejects_dir": file.parent / "rejects",
        "memo_dir": file.parent / "memo",
    }
    return check_files([file], CheckSettings(accepted_ground_truths()), **folders)


def prompt_of(file: Path) -> list[dict[str, Any]]:
    return next(row["prompt"] for _, row in read_rows(file))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_parts_and_the_developer_are_read_as_text_and_system(tmp_path: Path, suffix: str) -> None:
    parts = [
        {"role": role, "content": [{"type": "text", "text": role}]}
        for role in ("developer", "user")
    ]
    file = written(tmp_path, suffix, parts)
    assert checked(file).num_accepted == 1
    assert prompt_of(file) == [
        {"role": "system", "content": "developer"},
        {"role": "user", "content": "user"},
    ]


def test_calls_of_tools_and_their_answers_are_read(tmp_path: Path) -> None:
    file = written(tmp_path, ".jsonl", TALK)
    assert checked(file).num_accepted == 1
    system, user, call, answer = prompt_of(file)
    assert (system["role"], user["content"], answer) == ("system", "2+2?", TALK[3])
    assert call["content"] == "" and call["tool_calls"][0]["function"]["arguments"] == {"a": 2}


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([USER, {"role": "tool", "content": "4"}], "unknown role"),
        ([USER, {"role": "assistant", "content": None}], "content is not a string"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "content is not a string"),
        ([USER, {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}], "not calls"),
        ([{**USER, "tool_calls": [CALL]}], "not calls"),
    ],
)
def test_what_no_template_can_show_is_refused(
    tmp_path: Path, messages: list[Any], reason: str
) -> None:
    report = checked(written(tmp_path, ".jsonl", messages, [USER]))
    assert [one.reason for one in report.examples] == [reason]


class Shown:
    """A tokenizer whose template writes some parts of a message."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> str:
        return "\n".join(
            json.dumps(message.get(name), ensure_ascii=False)
            for message in messages
            for name in self.names
            if message["role"] != "tool" or name != "content" or "answers" in self.names
        )


def test_a_template_that_leaves_out_calls_or_answers_refuses_the_row(tmp_path: Path) -> None:
    prompt = prompt_of(written(tmp_path, ".jsonl", TALK))
    assert "add" in ChatTemplate(Shown("content", "tool_calls", "answers")).prompt(prompt)
    with pytest.raises(ModelError, match="does not show the call of the tool 'add'"):
        ChatTemplate(Shown("content", "answers")).prompt(prompt)
    with pytest.raises(ModelError, match="does not show the tool's answer 'it is"):
        ChatTemplate(Shown("content", "tool_calls")).prompt(prompt)
