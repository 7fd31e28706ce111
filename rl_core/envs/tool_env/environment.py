"""An environment whose model calls tools and then answers.

A reply with calls is answered by a message of role `tool` for each; one without is the answer,
which another environment grades. A call that cannot be read, or fails, is answered with
`error: ...`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from pydantic import Field

from rl_core.envs.base import BaseTextEnv, BaseTextEnvStepOutput, Message, OracleReplies
from rl_core.envs.calls.form import CallForm, Parsed
from rl_core.envs.calls.forms import FORMS, ToolFormat
from rl_core.envs.registration import make
from rl_core.envs.tool_env.declared import declared_tools
from rl_core.envs.tool_env.functions import FunctionTool, function_of
from rl_core.envs.tool_env.mcp_server import lease_server, tools_of
from rl_core.envs.tool_env.python_tool import PythonTool
from rl_core.envs.tool_env.result import shortened
from rl_core.envs.tool_env.running import Answered, run_calls
from rl_core.envs.tool_env.settings import ShowTools, ToolEntry
from rl_core.envs.tool_env.system_text import with_tools
from rl_core.envs.tool_env.tool import Schema, Tool
from rl_core.envs.tools.places.sandbox_choice import SandboxChoice, SandboxMode
from rl_core.errors import EnvError
from schemas.rows.problems import is_missing
from schemas.sections.checks.numbers import Seconds

COUNTS = ("tool_calls", "malformed_tool_calls", "tool_errors", "tool_timeouts")


class ToolEnv(BaseTextEnv):
    """Environment of up to `max_turns` turns with tools; the reward is that of the last reply's
    text. A subclass may grade by itself (`grade`) and bring tools of its own (`own_tools`)."""

    class Config(BaseTextEnv.Config):
        """Settings from the recipe's `environments.<name>`."""

        max_turns: int = Field(default=8, ge=1)
        """Maximum number of turns; what the last one calls is not run."""
        tools: list[ToolEntry] = Field(default_factory=list)
        """Tools that the model may call: `{function: "my_pkg.my_module:add"}`,
        `{mcp: {command: [...]}}`, `{mcp: {url: ...}}` or `python`. A row's own `tools` choose and
        describe those that it is offered."""
        graded_by: str = "exact_match"
        """Environment that grades the answer in its first turn, such as `gsm8k`, or a class
        `my_pkg.my_module:MyEnv`."""
        tool_timeout_s: Seconds = Field(default=10.0, gt=0)
        """Longest time in seconds for a call; the calls of a turn run at once."""
        max_answer_characters: int = Field(default=8000, ge=100)
        """Longest text of a tool in characters; the middle of a longer one is left out."""
        show_tools: ShowTools = ShowTools.TEMPLATE
        """Place in which the model reads what it may call: `template` or `system`."""
        tool_format: ToolFormat | None = None
        """Form in which the model writes calls; unset takes the one that its chat template tells
        of."""
        examples: list[dict[str, Any]] = Field(default_factory=list)
        """Messages between the system message and the row's own, such as a question, a call, its
        answer and a reply, for models that call no tool by themselves."""
        sandbox: SandboxChoice = SandboxMode.BUBBLEWRAP
        """Isolation of the programs of `python`: `bubblewrap`, `docker`, `podman`, `{docker:
        IMAGE}`, `{remote: "http://host:8080"}`; `unsafe` runs them without a sandbox."""

    config: Config

    def __init__(
        self,
        env_config: Config | Mapping[str, object] | None = None,
        extras: Mapping[str, object] | None = None,
    ) -> None:
        """Check the row and take hold of the tools.

        Raises: EnvError when the row declares a bad tool, or a tool cannot be used.
        """
        super().__init__(env_config, extras)
        config = self.config
        if config.show_tools is ShowTools.SYSTEM and config.tool_format is not None:
            raise EnvError("tool_format: calls are hermes with show_tools system; leave it out")
        self._form: CallForm | None = None
        if config.tool_format is not None or config.show_tools is ShowTools.SYSTEM:
            self._form = FORMS[config.tool_format or ToolFormat.HERMES]
        self._begun = ""
        self._counts = dict.fromkeys(COUNTS, 0.0)
        self._graded: dict[str, float] = {}
        self.grader: BaseTextEnv | None = None
        self._held = ExitStack()
        try:
            if type(self).grade is ToolEnv.grade:
                self.grader = make(config.graded_by, {}, self.extras)
                self._held.callback(self.grader.close)
            self._tools = self._all_tools()
            own = self.row_tools(self.extras)
            self.tools = self.every_tool if own is None else own
        except BaseException:
            self._held.close()
            raise

    @property
    def every_tool(self) -> list[Schema]:
        """The tools that rows without a choice of their own are offered."""
        return [one.schema for one in self._tools.values()]

    @property
    def template_tools(self) -> list[Schema]:
        """The tools that the chat template has to show; empty if the system message does."""
        return self.shown([], self.tools)[1]

    @property
    def call_form(self) -> CallForm:
        """The form in which the model writes calls."""
        return FORMS[ToolFormat.HERMES] if self._form is None else self._form

    def use_form(self, form: CallForm | None) -> None:
        """Read calls in the form of a model's chat template, unless the recipe names another.

        Raises: EnvError when neither tells of one.
        """
        if self._form is not None:
            return
        if form is None:
            raise EnvError(
                "tool_format: the chat template does not tell in which form calls are written; set "
                f"one of {', '.join(FORMS)}, or show_tools: system"
            )
        self._form = form

    def own_tools(self) -> Sequence[Callable[..., object]]:
        """Return tools that the class brings along: typed functions or methods with docstrings."""
        return ()

    def init(self, prompt: list[Message]) -> tuple[list[Message], dict[str, object]]:
        """Return the prompt with the examples, and with the tools in its system message if the
        template shows none."""
        if prompt and prompt[-1]["role"] == "assistant":  # a prefill, which a reply continues
            self._begun = str(prompt[-1]["content"])
        return self.shown(prompt, self.tools)[0], {}

    def shown(
        self, prompt: list[Message], tools: list[Schema]
    ) -> tuple[list[Message], list[Schema]]:
        """Return a prompt as the model reads it with these tools, and those that the chat template
        adds to it."""
        if self.config.examples:
            first = 1 if prompt and prompt[0]["role"] == "system" else 0
            prompt = [*prompt[:first], *map(dict, self.config.examples), *prompt[first:]]
        if self.config.show_tools is ShowTools.SYSTEM:
            return (with_tools(prompt, tools) if tools else prompt), []
        return prompt, tools

    def row_tools(self, extras: Mapping[str, object]) -> list[Schema] | None:
        """Return the tools that a row of this environment declares; None if it declares none.

        Raises: EnvError on a bad one.
        """
        extra = extras.get("extra_info")
        places = (extras, extra if isinstance(extra, Mapping) else {})
        declared = next((one["tools"] for one in places if one.get("tools") is not None), None)
        if is_missing(declared):
            return None
        try:
            return declared_tools(declared, list(self._tools))
        except EnvError as error:
            raise EnvError(f"{self.where}: {error}") from error

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Run the calls of a reply, or grade one without calls, or the last turn's text."""
        action, self._begun = self._begun + action, ""
        form = self._form
        if form is None:
            # Nobody told the model's form, as where stored replies are played again.
            known = (one for one in FORMS.values() if one.parse(action).calls)
            form = next(known, self.call_form)
        parsed = form.parse(action)
        return self.take(parsed, is_malformed=not parsed.calls and form.tries(action))

    def take(self, parsed: Parsed, *, is_malformed: bool = False) -> BaseTextEnvStepOutput:
        """Play one turn of a reply that is taken apart. Args: is_malformed: the reply has a call
        that cannot be read."""
        self.turns += 1
        self._counts["malformed_tool_calls"] += is_malformed
        if not (parsed.calls or is_malformed) or self.turns >= self.max_turns:
            # A call that nobody runs is no answer.
            return self._last("" if is_malformed else parsed.content)
        if is_malformed:
            return self._told([{"role": "tool", "content": self._how_to_call()}])
        self._counts["tool_calls"] += len(parsed.calls)
        offered = {tool["function"]["name"] for tool in self.tools}
        tools = {name: tool for name, tool in self._tools.items() if name in offered}
        answers = run_calls(parsed.calls, tools, self.config.tool_timeout_s)
        self._counts["tool_errors"] += sum(one.failed for one in answers)
        self._counts["tool_timeouts"] += sum(one.timed_out for one in answers)
        return self._told(
            [
                self._message(call.name, number, answer)
                for number, (call, answer) in enumerate(zip(parsed.calls, answers, strict=True))
            ]
        )

    def grade(self, answer: str) -> BaseTextEnvStepOutput:
        """Return the reward of the conversation. Args: answer: the last reply's text, without
        calls."""
        assert self.grader is not None
        turn = self.grader.step(answer)
        found = asyncio.run(_waited(turn)) if inspect.isawaitable(turn) else turn
        self._graded = self.grader.get_metrics()
        return BaseTextEnvStepOutput(
            observations=[], reward=found["reward"], done=True, metadata=found["metadata"]
        )

    def oracle_replies(self) -> OracleReplies | None:
        """Return the replies of the environment that grades: an answer without calls."""
        return None if self.grader is None else self.grader.oracle_replies()

    def get_metrics(self) -> dict[str, float]:
        """Return the numbers of calls, of those that could not be read, failed or were late, of
        turns, and the grader's metrics."""
        return {**self._graded, **self._counts, "turns": float(self.turns)}

    def close(self) -> None:
        """Release the tools and the grader."""
        super().close()
        self._held.close()

    def _all_tools(self) -> dict[str, Tool]:
        found: list[Tool] = [FunctionTool(one) for one in self.own_tools()]
        for entry in self.config.tools:
            found += self._tools_of(entry)
        if not found:
            raise EnvError("tools: names no tool; give at least one")
        names = [tool.name for tool in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise EnvError(f"tools: two tools have the name {twice[0]!r}")
        return {tool.name: tool for tool in found}

    def _tools_of(self, entry: ToolEntry) -> Sequence[Tool]:
        if entry.function is not None:
            return [function_of(entry.function)]
        if entry.mcp is not None:
            lease = lease_server(entry.mcp)
            self._held.callback(lease.release)
            return tools_of(lease.value, entry.only)
        python = PythonTool(self.config.tool_timeout_s, self.config.sandbox)
        self._held.callback(python.close)
        return [python]

    def _last(self, answer: str) -> BaseTextEnvStepOutput:
        turn = self.grade(answer)
        return {**turn, "done": True, "observations": []}

    def _told(self, messages: list[Message]) -> BaseTextEnvStepOutput:
        return BaseTextEnvStepOutput(observations=messages, reward=0.0, done=False, metadata={})

    def _message(self, name: str, number: int, answer: Answered) -> Message:
        # Some templates insist on ids of nine letters and digits (Mistral).
        call_id = f"call{self.turns % 100:02d}{number % 1000:03d}"
        content = shortened(answer.content, self.config.max_answer_characters)
        return {"role": "tool", "name": name, "tool_call_id": call_id, "content": content}

    def _how_to_call(self) -> str:
        name = self.tools[0]["function"]["name"] if self.tools else "name"
        begun = self.call_form.forced(name).strip()
        return f"error: the call cannot be read; it must begin with {begun}"


async def _waited(turn: Any) -> Any:
    return await turn
