"""Programs against test cases (LiveCodeBench): the reply's last code block must pass them all.

A test case is `{input, output, testtype, metadata}`. `stdin` tests give the program its input and
compare its output; `functional` tests, which name `metadata.func_name`, call that function (or
method of `Solution`) with the lines of the input as JSON arguments and compare its return value. A
`stdin` program that only defines functions is called too. All tests may also be one object of
`inputs`, `outputs` and, for functions, `fn_name`, as APPS, PRIME and Eurus write them.

The program runs in a sandbox, each test in a fresh process there. Expected outputs never enter the
sandbox: the program only sees the input of a test. Tests run in order until one fails; there is a
deadline for each test and for all of them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, plain
from rl_core.envs.registration import environments
from rl_core.envs.tools.code import last_code_block
from rl_core.envs.tools.execution import Call, Execution, Outcome
from rl_core.envs.tools.grading import read_literal, same_output, same_result
from rl_core.envs.tools.places.sandbox_choice import SandboxChoice, SandboxMode
from rl_core.envs.tools.sandbox import RunsProgram, SandboxSettings, lease_pool
from rl_core.errors import EnvError
from schemas.sections.checks.numbers import Seconds

MAX_SOURCE_CHARACTERS = 200_000


@dataclass(frozen=True)
class TestCase:
    """One test. `call` is set for a functional test."""

    __test__ = False

    stdin: str
    expected: object
    call: Call | None
    wrapped: bool = False
    """A returned value may also be the one item of `expected`, as in APPS."""


@environments.register("lcb")
class LCBEnv(BaseTextEnv):
    """Single-turn environment; reward 1.0 if the program in the reply passes all tests, else
    0.0."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `env_config`."""

        timeout_s: Seconds = Field(default=6.0, gt=0)
        """Wall time of one test in seconds."""
        total_timeout_s: Seconds = Field(default=60.0, gt=0)
        """Wall time of all tests of one program together in seconds."""
        memory_mb: int = Field(default=1024, ge=64)
        """Address space of one test's process in MiB."""
        sandbox: SandboxChoice = SandboxMode.BUBBLEWRAP
        """Isolation of programs: `bubblewrap`, `docker`, `podman`, `{docker: IMAGE}`, `{remote:
        "http://host:8080"}` for a server of SandboxFusion; `unsafe` runs them without a sandbox."""

    config: Config
    ground_truth_kinds: ClassVar[frozenset[str]] = frozenset({"test_cases"})
    # Deadlines of programs count wall time: more of them than processors would time each other out.
    max_concurrent_steps: ClassVar[int | None] = os.cpu_count()

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the row and lease a sandbox pool.

        Raises: EnvError on a row whose tests cannot be run, or when there is no sandbox.
        """
        super().__init__(env_config, extras)
        self.tests = [self._test(index, case) for index, case in enumerate(self.ground_truth)]
        if not any(test.call or str(test.expected).strip() for test in self.tests):
            raise EnvError(
                f"{self.where}: every expected output is empty: a program that prints nothing "
                "would pass"
            )
        settings = SandboxSettings(
            mode=self.config.sandbox, memory_bytes=self.config.memory_mb * 2**20
        )
        self._pool = lease_pool(settings)
        self._metrics: dict[str, float] = {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Grade the reply; `metadata` has the number of passed tests and the reason of the first
        failure."""
        self.turns += 1
        source = last_code_block(action)
        if source is None or len(source) > MAX_SOURCE_CHARACTERS:
            return self._verdict(
                0, {"failure": "no code block" if source is None else "the program is too long"}
            )
        started = time.monotonic()
        with self._pool.value.sandbox(source) as sandbox:
            for index, test in enumerate(self.tests):
                left = self.config.total_timeout_s - (time.monotonic() - started)
                if left <= 0:
                    return self._verdict(index, {"failure": "total timeout"})
                failure = self._failure(sandbox, test, min(left, self.config.timeout_s))
                if failure is not None:
                    return self._verdict(index, failure)
        return self._verdict(len(self.tests), {})

    def close(self) -> None:
        """Release the sandboxes."""
        super().close()
        self._pool.release()

    def get_metrics(self) -> dict[str, float]:
        """Return `correct`, `has_code` and `timeout`, 0 or 1 each, and the share of tests passed
        before the first failure."""
        return dict(self._metrics)

    def _failure(
        self, sandbox: RunsProgram, test: TestCase, timeout_s: float
    ) -> dict[str, object] | None:
        """Return the reason why the program fails the test, or None if it passes."""
        execution = sandbox.run(
            timeout_s=timeout_s, stdin=test.stdin, call=test.call, call_bare=test.call is None
        )
        if execution.outcome == Outcome.FINISHED:
            if _passes(test, execution):
                return None
            return {"failure": "wrong answer"}
        tail = execution.stderr[-500:].decode("utf-8", "replace")
        return {"failure": str(execution.outcome), "stderr": tail}

    def _verdict(self, passed: int, detail: dict[str, object]) -> BaseTextEnvStepOutput:
        reward = float(passed == len(self.tests))
        failure = detail.get("failure")
        self._metrics = {
            "correct": reward,
            "passed": passed / len(self.tests),
            "has_code": float(failure != "no code block"),
            "timeout": float(failure in ("timeout", "total timeout")),
        }
        metadata = {"passed": passed, "tests": len(self.tests), **detail}
        return BaseTextEnvStepOutput(observations=[], reward=reward, done=True, metadata=metadata)

    def _test(self, index: int, case: Mapping[str, object]) -> TestCase:
        place = f"{self.where}: reward_spec.ground_truth[{index}]"
        given, expected = plain(case.get("input")), plain(case.get("output"))
        if given is None or expected is None:
            raise EnvError(f"{place} must have input and output, got {sorted(case)}")
        name = self._function_name(case, place)
        if name is None:
            return TestCase(_as_text(given), _as_text(expected), None)
        if isinstance(given, str):
            arguments = []
            for line in given.splitlines():
                if line.strip():
                    arguments.append(read_literal(line))
        else:
            arguments = given if isinstance(given, list) else [given]
        return TestCase("", expected, Call(name, arguments), bool(case.get("wrapped")))

    def _function_name(self, case: Mapping[str, object], place: str) -> str | None:
        metadata = plain(case.get("metadata"))
        if isinstance(metadata, str) and metadata.strip():
            try:
                metadata = json.loads(metadata)
            except ValueError as error:
                raise EnvError(f"{place}.metadata is not JSON: {metadata!r:.100}") from error
        names = metadata if isinstance(metadata, Mapping) else {}
        name = (
            names.get("func_name") or names.get("fn_name") or self.row_value("func_name", "fn_name")
        )
        kind = case.get("testtype")
        if kind not in (None, "", "stdin", "functional"):
            raise EnvError(f"{place}.testtype must be stdin or functional, got {kind!r}")
        if kind == "functional" and not name:
            raise EnvError(f"{place}: a functional test needs metadata.func_name")
        if name and kind != "stdin":
            return str(name)
        return None


def _passes(test: TestCase, execution: Execution) -> bool:
    if test.call is None and not execution.result:
        return same_output(execution.stdout.decode("utf-8", "replace"), str(test.expected))
    expected = [test.expected]
    if test.wrapped and isinstance(test.expected, list) and len(test.expected) == 1:
        expected += test.expected
    return any(same_result(execution.result, one, as_printed=test.call is None) for one in expected)


def _as_text(value: object) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value)
