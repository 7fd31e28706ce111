import sqlite3
from pathlib import Path
from typing import Any

import pytest

from rl_core.envs import BaseTextEnv, make
from rl_core.envs.trials.oracle import play
from rl_core.errors import EnvError

THINK = "<think>Hm.</think>"
AVERAGE = "SELECT AVG(salary) FROM employees"
NAMES = "SELECT name FROM employees"
ORDERED = "SELECT name FROM employees ORDER BY salary DESC"
EMPTY = "SELECT name FROM employees WHERE salary > 1000000"
DEPARTMENTS = "SELECT department FROM employees"


@pytest.fixture(scope="module")
def db_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sql")
    for folder in ("spider/database", "SynSQL-2.5M/databases", "bird/train/train_databases"):
        file = root / folder / "employees" / "employees.sqlite"
        file.parent.mkdir(parents=True)
        with sqlite3.connect(file) as connection:
            connection.execute(
                "CREATE TABLE employees (id INTEGER, name TEXT, salary REAL, department TEXT)"
            )
            rows = [
                (1, "Ann", 100.0, "x"),
                (2, "Bob", 200.0, "x"),
                (3, "Cy", 300.0, "y"),
                (4, "Di", 250.5, None),
            ]
            connection.executemany("INSERT INTO employees VALUES (?, ?, ?, ?)", rows)
        connection.close()
    return root


def environment(db_path: Path, gold: str = AVERAGE, **extras: Any) -> BaseTextEnv:
    row = {
        "reward_spec": {"ground_truth": gold},
        "data_source": "spider",
        "extra_info": {"db_id": "employees"},
    }
    return make("text2sql", {"db_path": str(db_path)}, {**row, **extras})


def solve(db_path: Path, gold: str, *actions: str) -> float:
    env = environment(db_path, gold)
    outputs = [env.step(action) for action in actions]
    env.close()
    assert [output["done"] for output in outputs] == [False] * (len(actions) - 1) + [True]  # type: ignore[index]
    assert all(output["reward"] == 0.0 for output in outputs[:-1])  # type: ignore[index]
    return outputs[-1]["reward"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("gold", "solution", "reward", "why"),
    [
        (AVERAGE, AVERAGE, 1.0, "the gold query itself"),
        (AVERAGE, AVERAGE + ";", 1.0, "a semicolon at the end"),
        (AVERAGE, f"\n {AVERAGE} \n", 1.0, "white space around"),
        (AVERAGE, f"```sql\n{AVERAGE}\n```", 1.0, "a code fence"),
        (AVERAGE, f"```sql\r\n{AVERAGE}\r\n```", 1.0, "a code fence with CRLF"),
        (AVERAGE, f"-- the mean\n{AVERAGE}", 1.0, "a comment first"),
        (AVERAGE, "select sum(salary) / count(*) from employees", 1.0, "the same number computed otherwise"),
        (AVERAGE, "WITH e AS (SELECT * FROM employees) SELECT AVG(salary) FROM e", 1.0, "a common table expression"),
        (AVERAGE, "SELECT AVG(salary) AS average FROM employees", 1.0, "the column's name does not matter"),
        (AVERAGE, "SELECT AVG(salary) + 1e-12 FROM employees", 1.0, "rounding noise"),
        (NAMES, "SELECT name FROM employees ORDER BY name DESC", 1.0, "another order where none is asked for"),
        (NAMES, "SELECT e.name FROM employees e", 1.0, "an alias"),
        (ORDERED, ORDERED, 1.0, "the order asked for"),
        (ORDERED, "SELECT name FROM employees ORDER BY -salary", 1.0, "the same order said otherwise"),
        ("SELECT name FROM (SELECT * FROM employees ORDER BY id)", "SELECT name FROM employees ORDER BY name DESC", 1.0,
         "an ORDER BY of an inner query asks for nothing"),
        ("SELECT 'order by' FROM employees", "SELECT 'order by' FROM employees", 1.0, "a literal is no clause"),
        (EMPTY, EMPTY, 1.0, "a gold query without rows, solved"),
        (EMPTY, "SELECT e.name FROM employees e WHERE e.salary >= 1000001", 1.0, "the same, said otherwise"),
        ("SELECT COUNT(*) FROM employees", "SELECT COUNT(id) FROM employees", 1.0, "another count"),
        ("SELECT 1", "SELECT 1.0", 1.0, "a whole float is the integer"),
        ("SELECT department FROM employees WHERE id = 4", "SELECT NULL", 1.0, "NULL is NULL"),
        (AVERAGE, "SELECT MAX(salary) FROM employees", 0.0, "another number"),
        (AVERAGE, "SELECT AVG(salary), 1 FROM employees", 0.0, "one column too many"),
        (AVERAGE, "SELECT AVG(salry) FROM employees", 0.0, "a misspelt column"),
        (AVERAGE, "SELECT AVG(salary FROM employees", 0.0, "a syntax error"),
        (AVERAGE, "SELECT CAST(AVG(salary) AS TEXT) FROM employees", 0.0, "text is no number"),
        (ORDERED, NAMES, 0.0, "the order is missing"),
        (ORDERED, "SELECT name FROM employees ORDER BY salary", 0.0, "the order is reversed"),
        (NAMES, "SELECT name FROM employees LIMIT 3", 0.0, "a row is missing"),
        (NAMES, "SELECT name FROM employees UNION ALL SELECT 'Ann'", 0.0, "a row too many"),
        (DEPARTMENTS, "SELECT DISTINCT department FROM employees", 0.0, "duplicates count: a multiset, not a set"),
        (DEPARTMENTS, "SELECT department FROM employees GROUP BY department, id > 3", 0.0, "the right values, too few"),
        ("SELECT name, salary FROM employees", "SELECT salary, name FROM employees", 0.0, "columns swapped"),
        (EMPTY, "SELECT 1 WHERE 0", 0.0, "any query without rows would be equal"),
        (EMPTY, "SELECT name FROM employees WHERE 0", 0.0, "nor one that never looks at the salary"),
        (EMPTY, "SELECT name, salary FROM employees WHERE salary < 0", 0.0, "nor one with other columns"),
        (EMPTY, "VALUES (1)", 0.0, "rows where none belong"),
        (EMPTY, "DELETE FROM employees", 0.0, "not a SELECT, though it returns nothing too"),
        (EMPTY, "PRAGMA user_version = 7", 0.0, "a PRAGMA returns nothing too"),
        (EMPTY, "-- nothing", 0.0, "a comment is no query"),
        (EMPTY, ";", 0.0, "a semicolon is no query"),
        (EMPTY, "EXPLAIN SELECT 1", 0.0, "an explanation is no query"),
        (AVERAGE, f"{AVERAGE}; SELECT 1", 0.0, "two statements"),
        (AVERAGE, f"SELECT 1; {AVERAGE}", 0.0, "two statements, the right one last"),
        (AVERAGE, "212.625 rows", 0.0, "an answer in words is no query"),
        (EMPTY, "", -1.0, "an empty solution"),
        (EMPTY, "  \n ", -1.0, "a blank solution"),
        (EMPTY, "``` ```", -1.0, "an empty fence"),
        (AVERAGE, f"<sql>{AVERAGE}</sql>", -1.0, "tags inside the solution"),
        (AVERAGE, f"<think>{AVERAGE}</think>", -1.0, "thoughts inside the solution"),
    ],
)  # fmt: skip
def test_solutions(db_path: Path, gold: str, solution: str, reward: float, why: str) -> None:
    assert solve(db_path, gold, f"{THINK}<solution>{solution}</solution>") == reward, why


RIGHT = f"<solution>{AVERAGE}</solution>"
LOOK = "<sql>SELECT * FROM employees</sql>"


@pytest.mark.parametrize(
    ("actions", "reward", "why"),
    [
        ([f"{THINK}{RIGHT}"], 1.0, "one turn"),
        ([f"{THINK}{LOOK}", f"{THINK}{RIGHT}"], 1.0, "a query first"),
        ([f"{THINK}{LOOK}", f"\n{THINK}\n{RIGHT}\n"], 1.0, "line ends around the tags"),
        ([f"Well. {THINK}{RIGHT}"], 1.0, "words before the first thought"),
        ([f"{THINK}{LOOK}{RIGHT}"], 1.0, "a query and the solution in one turn: the solution counts"),
        ([f"{THINK}{LOOK}"] * 4 + [f"{THINK}{RIGHT}"], 1.0, "the last turn may solve"),
        ([RIGHT], -1.0, "no thinking"),
        ([f"{RIGHT}{THINK}"], -1.0, "thinking only afterwards"),
        ([f"<think>Hm.{RIGHT}"], -1.0, "a thought that never ends"),
        ([f"{THINK}{LOOK}", RIGHT], -1.0, "no thinking after the observation"),
        ([f"{THINK}{LOOK}", f"So: {THINK}{RIGHT}"], -1.0, "words before the thinking after an observation"),
        ([f"{THINK}{RIGHT}{RIGHT}"], -1.0, "two solutions"),
        ([f"{THINK}<solution>SELECT 1</solution>{RIGHT}"], -1.0, "a wrong solution and the right one"),
        ([f"{THINK}<observation>212</observation>{THINK}{RIGHT}"], -1.0, "an observation of its own making"),
        ([f"{THINK}</solution>{RIGHT}"], -1.0, "a stray tag"),
        ([f"{THINK}{LOOK}"] * 5, -1.0, "out of turns without a solution"),
        (["no idea"] * 5, -1.0, "nothing but words"),
        ([f"{THINK}<solution>{AVERAGE}"] * 5, -1.0, "a solution that is never closed"),
    ],
)  # fmt: skip
def test_the_form_of_a_conversation(
    db_path: Path, actions: list[str], reward: float, why: str
) -> None:
    assert solve(db_path, AVERAGE, *actions) == reward, why


def test_observations_carry_the_result_and_the_turns_left(db_path: Path) -> None:
    env = environment(db_path)
    output: Any = env.step(f"{THINK}<sql>SELECT name, department FROM employees WHERE id > 2</sql>")
    assert output["observations"] == [
        {
            "role": "user",
            "content": "\n\n<observation>name | department\nCy | y\nDi | NULL\n"
            "<reminder>You have 4 turns left to complete the task.</reminder></observation>\n\n",
        }
    ]
    assert output["metadata"] == {
        "tool_group": "SQLCodeExecutorToolGroup",
        "tool_name": "sql",
        "tool_input": "SELECT name, department FROM employees WHERE id > 2",
    }
    error: Any = env.step(f"{THINK}<sql>SELECT nme FROM employees</sql>")
    assert "Error executing SQL: no such column: nme" in error["observations"][0]["content"]
    invalid: Any = env.step("hm")
    assert "Your previous action is invalid" in invalid["observations"][0]["content"]
    assert "You have 2 turns left" in invalid["observations"][0]["content"]


def test_a_long_result_is_cut_and_says_so(db_path: Path) -> None:
    many = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 90000) SELECT "
        "i, i FROM n"
    )
    output: Any = environment(db_path).step(f"{THINK}<sql>{many}</sql>")
    text = output["observations"][0]["content"]
    assert "Truncated to 50 rows" in text and "50 | 50" in text and "51 | 51" not in text


@pytest.mark.parametrize(
    "row",
    [
        {"data_source": "synsql"}, {"data_source": "bird"}, {"data_source": None, "data": "spider"},
        {"data_source": None, "extra_info": {"db_id": "employees", "data": "spider"}},
        {"db_id": "employees", "extra_info": None},
    ],
)  # fmt: skip
def test_where_the_database_is_named(db_path: Path, row: dict[str, Any]) -> None:
    env = environment(db_path, **row)
    assert env.step(f"{THINK}{RIGHT}")["reward"] == 1.0  # type: ignore[index]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"extra_info": {"db_id": "../database/employees"}}, "not the name of a database folder"),
        ({"extra_info": {"db_id": ".."}}, "not the name of a database folder"),
        ({"extra_info": {"db_id": "a\\b"}}, "not the name of a database folder"),
        ({"extra_info": {"db_id": "employees\0"}}, "not the name of a database folder"),
        ({"extra_info": {"db_id": "/etc"}}, "not the name of a database folder"),
        ({"extra_info": {"db_id": "customers"}}, "there is no database at"),
        ({"extra_info": {"db_id": None}}, "db_id and data_source must be strings"),
        ({"data_source": "oracle"}, "known: spider, synsql, bird"),
        ({"reward_spec": {"ground_truth": ["a"]}}, "ground_truth"),
    ],
)  # fmt: skip
def test_a_row_without_its_database_is_refused(
    db_path: Path, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnvError, match=message):
        environment(db_path, **row)


@pytest.mark.parametrize(
    "gold", ["SELECT nope FROM employees", "DELETE FROM employees", "", "SELECT 1; SELECT 2"]
)
def test_a_gold_query_that_cannot_be_run_fails_the_row_before_the_model_is_asked(
    db_path: Path, gold: str
) -> None:
    with pytest.raises(EnvError, match="gold query"):
        environment(db_path, gold)


@pytest.mark.parametrize("gold", [AVERAGE, ORDERED, EMPTY])
def test_the_gold_query_passes_the_oracle_check(db_path: Path, gold: str) -> None:
    assert play(lambda: environment(db_path, gold), []) == []


def test_a_gold_query_that_fails_says_why(db_path: Path) -> None:
    with pytest.raises(EnvError, match=r"reward_spec\.ground_truth: .*no such table"):
        environment(db_path, "SELECT name FROM missing")
