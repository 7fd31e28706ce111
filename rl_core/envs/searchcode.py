"""Maths with two tools, a search and Python: `<tool><search>..</search></tool>`,
`<tool><python>..</python></tool>`.

`<solution>` ends the conversation; its number is graded as in `gsm8k`, with or without `####`
before it. Tool output is never read as the model's solution.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import ClassVar

from pydantic import Field

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, OracleReplies, tag_pairs
from rl_core.envs.gsm8k import other_number, read_answer, read_number, read_truths
from rl_core.envs.registration import environments
from rl_core.envs.search import SearchSettings
from rl_core.envs.tools.places.sandbox_choice import SandboxChoice, SandboxMode
from rl_core.envs.tools.python import PythonCodeExecutorToolGroup
from rl_core.envs.tools.tags import first_tagged, tagged, without_tagged
from schemas.sections.checks.numbers import Seconds

_INNER = re.compile(r"\s*+<(\w+)>(.*?)</\1>\s*", re.DOTALL)


def read_solution(action: str) -> Decimal | None:
    """Return the number in the last `<solution>` of a reply, or None."""
    found = tagged(action, "solution")
    if not found:
        return None
    if "####" in found[-1]:
        return read_answer(found[-1])
    lines = found[-1].strip().splitlines()
    return read_number(lines[-1]) if lines else None


@environments.register("searchcode")
class SearchCodeEnv(BaseTextEnv):
    """Environment of up to `max_turns` turns; reward 1.0 if the solution's number is right, else
    0.0."""

    class Config(SearchSettings):
        """Settings from the recipe's `env_config`; the fields of `search` belong to the search
        tool."""

        python_timeout_s: Seconds = Field(default=10.0, gt=0)
        """Seconds for one call of the Python tool."""
        sandbox: SandboxChoice = SandboxMode.BUBBLEWRAP
        """Isolation of programs: `bubblewrap`, `docker`, `podman`, `{docker: IMAGE}`, `{remote:
        "http://host:8080"}` for a server of SandboxFusion; `unsafe` runs them without a sandbox."""

    config: Config
    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset({"string", "number", "list"})
    tags: ClassVar[frozenset[str]] = tag_pairs("think", "tool", "search", "python", "solution")
    stop: tuple[str, ...] = ("</tool>", "</solution>")
    # Deadlines of programs count wall time: more of them than processors would time each other out.
    max_concurrent_steps: ClassVar[int | None] = os.cpu_count()

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the row and create its tools.

        Raises: EnvError when the row's truth is not a number, or when there is no sandbox.
        """
        super().__init__(env_config, extras)
        self.truths = read_truths(self)
        python = PythonCodeExecutorToolGroup(self.config.python_timeout_s, self.config.sandbox)
        self.init_tool_groups([self.config.tool_group(), python])
        self._metrics: dict[str, float] = {"tool_calls": 0.0}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Call the turn's tool, or grade the turn if it has a solution or is the last one."""
        self.turns += 1
        # What stands in a tool's call is the tool's.
        words = without_tagged(action, "tool")
        if tagged(words, "solution") or self.turns >= self.max_turns:
            answer = read_solution(words)
            reward = float(answer is not None and answer in self.truths)
            self._metrics.update(correct=reward, answered=float(answer is not None))
            metadata: dict[str, object] = {"answer": None if answer is None else str(answer)}
            return BaseTextEnvStepOutput(
                observations=[], reward=reward, done=True, metadata=metadata
            )
        name, argument = _read_call(action)
        group = self.tool_to_toolgroup.get(name or "")
        metadata = {
            "tool_group": group,
            "tool_name": name if group else None,
            "tool_input": argument,
        }
        if group is None:
            known = " or ".join(
                f"<tool><{tool}>...</{tool}></tool>" for tool in sorted(self.tool_to_toolgroup)
            )
            text = f"No tool was called. Write {known}, or finish with <solution>...</solution>."
        else:
            self._metrics["tool_calls"] += 1
            text = self._execute_tool(group, name or "", [argument])
        return BaseTextEnvStepOutput(
            observations=[{"role": "user", "content": text}],
            reward=0.0,
            done=False,
            metadata=metadata,
        )

    def oracle_replies(self) -> OracleReplies:
        """Return the truth and another number, each as a solution."""
        right, wrong = self.truths[0], other_number(self.truths)
        return OracleReplies(f"<solution>{right:f}</solution>", f"<solution>{wrong:f}</solution>")

    def get_metrics(self) -> dict[str, float]:
        """Return `correct`, `answered`, `tool_calls` and `turns`."""
        return {**self._metrics, "turns": float(self.turns)}


def _read_call(action: str) -> tuple[str | None, str]:
    call = first_tagged(action, "tool")
    inner = _INNER.fullmatch(call) if call is not None else None
    if inner:
        return (inner[1], inner[2])
    return (None, "")
