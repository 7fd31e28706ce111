"""The five complete examples of SkyRL's data format, as given: each with a right and with a wrong
answer."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_core.envs import accepted_ground_truths, make
from rl_core.envs import registration as registration_module
from schemas.rows.prompt_rows import validate_rows

GSM8K = {
    "data_source": "openai/gsm8k",
    "prompt": [
        {
            "role": "user",
            "content": "Janet has 3 apples. She buys 2 more apples. How many apples does Janet have now? "
            'Let\'s think step by step and output the final answer after "####".',
        }
    ],
    "env_class": "gsm8k",
    "reward_spec": {"method": "rule", "ground_truth": "5"},
    "extra_info": {
        "split": "train",
        "index": 0,
        "answer": "Janet starts with 3 apples. She buys 2 more. 3 + 2 = 5.\n#### 5",
        "question": "Janet has 3 apples. She buys 2 more apples. How many apples does Janet have now?",
    },
}
MULTIPLY = {
    "data_source": "synthetic_multiply",
    "prompt": [
        {
            "role": "system",
            "content": "You are a helpful assistant that solves multiplication problems. "
            "Put your final answer in \\boxed{answer} format.",
        },
        {"role": "user", "content": "What is 42 * 73?"},
    ],
    "env_class": "multiply",
    "reward_spec": {"method": "rule", "ground_truth": "3066"},
    "extra_info": {"num_digits": 2, "split": "train"},
}
LCB = {
    "data_source": "livecodebench",
    "prompt": [
        {
            "role": "system",
            "content": "You are an expert Python programmer. Write clean, efficient code.",
        },
        {
            "role": "user",
            "content": "Write a function that returns the square of a number.\n\n"
            "```python\ndef square(n):\n    # YOUR CODE HERE\n```",
        },
    ],
    "env_class": "lcb",
    "reward_spec": {
        "method": "rule",
        "ground_truth": [
            {"input": "5", "output": "25"},
            {"input": "-3", "output": "9"},
            {"input": "0", "output": "0"},
        ],
    },
    "extra_info": {"split": "train", "difficulty": "easy"},
}
SQL = {
    "data_source": "spider",
    "prompt": [
        {
            "role": "system",
            "content": "You are a SQL expert. Use <sql>...</sql> to execute queries. "
            "When ready, provide your final answer in <solution>...</solution>.",
        },
        {
            "role": "user",
            "content": "Database: employees\nTables: employees (id, name, salary)\n\n"
            "Question: What is the average salary?",
        },
    ],
    "env_class": "text2sql",
    "reward_spec": {"method": "rule", "ground_truth": "SELECT AVG(salary) FROM employees"},
    "extra_info": {"db_id": "employees", "max_turns": 5, "split": "train"},
}
SEARCH = {
    "data_source": "searchR1_nq",
    "prompt": [
        {
            "role": "system",
            "content": (
                "You are a helpful assistant. Use <search>query</search> to search for information."
            ),
        },
        {"role": "user", "content": "Who won the 2024 Super Bowl?"},
    ],
    "env_class": "search",
    "reward_spec": {
        "ground_truth": ["Kansas City Chiefs", "Chiefs"],
        "question": "Who won the 2024 Super Bowl?",
        "data_source": "searchR1_nq",
    },
    "extra_info": {
        "need_tools_kwargs": True,
        "tools_kwargs": {
            "search": {
                "create_kwargs": {
                    "ground_truth": ["Kansas City Chiefs"],
                    "question": "Who won the 2024 Super Bowl?",
                }
            }
        },
    },
}
THINK = "<think>Let me see.</think>"
AVERAGE = "<solution>SELECT AVG(salary) FROM employees</solution>"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from skyrl_gym.envs import register

    monkeypatch.setattr(registration_module, "_specs", {})
    register(id="multiply", entry_point="tests.envs.outside:MultiplyEnv")
    yield


@pytest.fixture
def config(tmp_path: Path, search_url: str) -> dict[str, dict[str, Any]]:
    file = tmp_path / "spider" / "database" / "employees" / "employees.sqlite"
    file.parent.mkdir(parents=True)
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE employees (id INTEGER, name TEXT, salary REAL)")
        connection.executemany(
            "INSERT INTO employees VALUES (?, ?, ?)", [(1, "Ann", 10.0), (2, "Bob", 20.0)]
        )
    connection.close()
    return {"text2sql": {"db_path": str(tmp_path)}, "search": {"search_url": search_url}}


@pytest.mark.parametrize(
    ("row", "replies", "reward"),
    [
        (GSM8K, ["3 + 2 = 5.\n#### 5"], 1.0),
        (GSM8K, ["3 + 2 = 6.\n#### 6"], 0.0),
        (MULTIPLY, ["I think it is \\boxed{3066}."], 1.0),
        (MULTIPLY, ["\\boxed{3065}", "\\boxed{3064}"], 0.0),
        (LCB, ["```python\ndef square(n):\n    return n * n\n```"], 1.0),
        (LCB, ["```python\ndef square(n):\n    return n + n\n```"], 0.0),
        (SQL, [f"{THINK}<sql>SELECT * FROM employees</sql>", f"{THINK}{AVERAGE}"], 1.0),
        (SQL, [f"{THINK}<solution>SELECT MAX(salary) FROM employees</solution>"], 0.0),
        (SQL, [AVERAGE], -1.0),
        (
            SEARCH,
            ["<search>Super Bowl 2024</search>", "<answer>The Kansas City Chiefs</answer>"],
            1.0,
        ),
        (SEARCH, ["<search>Super Bowl 2024</search>", "<answer>San Francisco 49ers</answer>"], 0.0),
    ],
)
def test_an_example_runs_as_given(
    row: dict[str, Any], replies: list[str], reward: float, config: dict[str, dict[str, Any]]
) -> None:
    env_id = row["env_class"]
    extras = {key: value for key, value in row.items() if key not in ("prompt", "env_class")}
    env = make(env_id, config.get(env_id), extras)
    prompt, _ = env.init(row["prompt"])
    assert prompt == row["prompt"]
    outputs: list[Any] = [env.step(reply) for reply in replies]
    env.close()
    assert [output["done"] for output in outputs] == [False] * (len(replies) - 1) + [True]
    assert sum(output["reward"] for output in outputs) == reward
    assert all(
        message["role"] == "user" for output in outputs for message in output["observations"]
    )


def test_all_five_pass_validation() -> None:
    rows = [GSM8K, MULTIPLY, LCB, SQL, SEARCH]
    assert (
        validate_rows(rows, file="f", first_row=1, allowed_env_classes=accepted_ground_truths())
        == []
    )
