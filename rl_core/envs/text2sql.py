"""Questions about a database: query it with `<sql>`, finish with `<solution>` (SkyRL-SQL).

The reward is -1 for a conversation in the wrong format, 1 if the solution's result equals the gold
query's, else 0. The format is judged on the model's own words alone: exactly one solution, which
contains no tags and is not empty; thinking (`<think>`) at the start of every turn that follows an
observation; no observation written by the model itself.

Results compare as multisets of rows; an ORDER BY in the gold query makes the order count. The
solution must be one SELECT and return as many columns. If the gold query returns no row, any empty
result would be equal, so the solution must read every column that the gold query reads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar

from pydantic import Field

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, Message, OracleReplies, tag_pairs
from rl_core.envs.registration import environments
from rl_core.envs.tools.sql import (
    MAX_ROWS,
    QueryResult,
    SQLCodeExecutorToolGroup,
    SQLError,
    database_file,
    is_ordered,
    run_query,
    same_rows,
)
from rl_core.envs.tools.tags import first_tagged
from rl_core.errors import EnvError
from schemas.sections.checks.numbers import Seconds

NO_QUERY = (
    "Your previous action is invalid. Think inside <think>, then write one query inside <sql> "
    "and </sql>."
)

_SOLUTION = re.compile(r"<solution>(.*?)</solution>", re.DOTALL)
_FENCE = re.compile(r"```[a-zA-Z]*+\s*+(.*?)```", re.DOTALL)
_TAG = re.compile(r"</?(?:think|sql|solution|observation)\b", re.IGNORECASE)


@environments.register("text2sql")
class Text2SQLEnv(BaseTextEnv):
    """Environment of up to `max_turns` turns; at the end, reward -1.0 for a wrong format, 1.0 for
    the gold query's result, else 0.0."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`."""

        max_turns: int = Field(default=5, ge=1)
        """Maximum number of turns."""
        db_path: str = "~/data/sql"
        """Root folder of the databases, with `spider/database/<db_id>/<db_id>.sqlite` and the
        like."""
        timeout_s: Seconds = Field(default=5.0, gt=0)
        """Seconds for one query."""
        gold_timeout_s: Seconds = Field(default=30.0, gt=0)
        """Seconds for the gold query."""

    config: Config
    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset({"string"})
    tags: ClassVar[frozenset[str]] = tag_pairs("think", "sql", "solution", "observation")
    stop: tuple[str, ...] = ("</sql>", "</solution>")

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the row, find its database and run its gold query.

        Raises: EnvError when the row's database is missing or outside the root, or its gold query
        is missing or cannot be run.
        """
        super().__init__(env_config, extras)
        self.gold_sql = str(self.ground_truth)
        db_id, source = self.row_value("db_id"), self.row_value("data_source", "data")
        if not isinstance(db_id, str) or not isinstance(source, str):
            raise EnvError(
                f"{self.where}: db_id and data_source must be strings, got {db_id!r} and {source!r}"
            )
        self.db_file = database_file(self.config.db_path, source, db_id)
        self.init_tool_groups([SQLCodeExecutorToolGroup(self.db_file, self.config.timeout_s)])
        self.actions: list[str] = []
        self._metrics: dict[str, float] = {}
        # Here, so that a row that cannot be graded is refused before any run.
        try:
            self._num_rows = len(self.gold.rows)
        except EnvError:
            self.close()
            raise

    def init(self, prompt: list[Message]) -> tuple[list[Message], dict[str, object]]:
        """Return the prompt unchanged, and the number of rows of the gold query's result."""
        return prompt, {"rows": self._num_rows}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Run the turn's query, or grade the conversation if it has a solution or this is the last
        turn."""
        self.turns += 1
        self.actions.append(action)
        if self.turns >= self.max_turns or first_tagged(action, "solution") is not None:
            return self._verdict()
        query = first_tagged(action, "sql")
        group, name = "SQLCodeExecutorToolGroup", "sql"
        metadata: dict[str, object] = {"tool_group": None, "tool_name": None, "tool_input": ""}
        if query is None:
            found = NO_QUERY
        else:
            metadata = {"tool_group": group, "tool_name": name, "tool_input": query}
            found = self._execute_tool(group, name, [_unfenced(query)])
        left = self.max_turns - self.turns
        reminder = f"<reminder>You have {left} turns left to complete the task.</reminder>"
        text = f"\n\n<observation>{found}\n{reminder}</observation>\n\n"
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": text}],
            reward=0.0,
            done=False,
            metadata=metadata,
        )

    def oracle_replies(self) -> OracleReplies:
        """Return the gold query and one that selects nothing, each as a solution after a
        thought."""
        return OracleReplies(_solved(self.gold_sql), _solved("SELECT NULL WHERE 0"))

    def get_metrics(self) -> dict[str, float]:
        """Return `correct`, `well_formed` and `turns`."""
        return {**self._metrics, "turns": float(self.turns)}

    @property
    def gold(self) -> QueryResult:
        """Result of the gold query. Raises: EnvError when it fails."""
        status = os.stat(self.db_file)
        try:
            gold = _run_gold(
                str(self.db_file), status.st_mtime_ns, self.gold_sql, self.config.gold_timeout_s
            )
        except SQLError as error:
            raise EnvError(
                f"{self.where}: reward_spec.ground_truth: the gold query {self.gold_sql!r:.200} "
                f"cannot be run: {error}"
            ) from error
        if not gold.is_complete:
            raise EnvError(
                f"{self.where}: reward_spec.ground_truth: the gold query {self.gold_sql!r:.200} "
                f"returns more than {MAX_ROWS} rows"
            )
        return gold

    def _verdict(self) -> BaseTextEnvStepOutput:
        solution = read_solution(self.actions)
        error = None
        reward = -1.0
        if solution is not None:
            try:
                reward = float(self._is_right(solution))
            except SQLError as refused:
                error, reward = str(refused), 0.0
        self._metrics = {
            "correct": float(reward == 1.0),
            "well_formed": float(solution is not None),
        }
        metadata = {"solution": solution, **({"error": error} if error is not None else {})}
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata=metadata)

    def _is_right(self, solution: str) -> bool:
        gold = self.gold
        limit = len(gold.rows) + 1
        result = run_query(self.db_file, solution, timeout_s=self.config.timeout_s, max_rows=limit)
        if len(result.columns) != len(gold.columns):
            return False
        if not gold.rows and not result.columns_read >= gold.columns_read:
            return False
        return same_rows(result.rows, gold.rows, ordered=is_ordered(self.gold_sql))


def read_solution(actions: list[str]) -> str | None:
    """Return the solution of a conversation, given the model's own turns; None if the format is
    wrong."""
    words = "".join(actions)
    if (
        words.count("<solution>") != 1
        or words.count("</solution>") != 1
        or re.search(r"</?observation\b", words)
    ):
        return None
    found = _SOLUTION.search(actions[-1])
    if found is None or _TAG.search(found[1]):
        return None
    starts_with_thought = all(action.lstrip().startswith("<think>") for action in actions[1:])
    thoughts = "".join([*actions[:-1], actions[-1][: found.start()]])
    if not starts_with_thought or first_tagged(thoughts, "think") is None:
        return None
    return _unfenced(found[1]) or None


def _solved(sql: str) -> str:
    return f"<think>Known.</think><solution>{sql}</solution>"


def _unfenced(sql: str) -> str:
    fenced = _FENCE.fullmatch(sql.strip())
    return (fenced[1] if fenced else sql).strip()


@lru_cache(maxsize=512)
def _run_gold(file: str, _modified: int, sql: str, timeout_s: float) -> QueryResult:
    return run_query(file, sql, timeout_s=timeout_s)
