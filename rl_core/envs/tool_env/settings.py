"""Settings of the tools of an environment, as a recipe writes them."""

from __future__ import annotations

import importlib.util
from enum import StrEnum
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from rl_core.envs.tool_env.functions import function_of
from rl_core.errors import EnvError
from rl_core.runtime.registry import PluginConfig
from schemas.sections.checks.numbers import Seconds

KINDS = ("function", "mcp", "builtin")
PYTHON = "python"


class ShowTools(StrEnum):
    """Place in which a model reads what it may call."""

    TEMPLATE = "template"
    """The model's chat template writes the tools in the form that the model was trained with."""
    SYSTEM = "system"
    """A text in the system message, for models whose template shows no tools; calls are
    `<tool_call>` with JSON."""


class McpServer(PluginConfig):
    """A server of tools that speaks the Model Context Protocol, started here or elsewhere."""

    command: list[str] | None = Field(default=None, min_length=1)
    """Program and arguments of a server that talks over its standard input and output; each
    process that plays conversations starts one, and all of its conversations share it."""
    env: dict[str, str] = Field(default_factory=dict)
    """Further environment variables of the program, which gets no others but PATH, HOME and their
    like."""
    url: str | None = None
    """Address of a server that runs already, such as `http://127.0.0.1:9000/mcp`."""
    token_from: str | None = None
    """Environment variable with the token that `url` asks for as `Authorization: Bearer`."""
    start_timeout_s: Seconds = Field(default=60.0, gt=0)
    """Longest time in seconds until the server has listed its tools."""

    @model_validator(mode="after")
    def _is_one_server(self) -> McpServer:
        if (self.command is None) == (self.url is None):
            raise ValueError("give command (a program to start) or url (a server that runs)")
        if self.url is not None and urlsplit(self.url).scheme not in ("http", "https"):
            raise ValueError("url must begin with http:// or https://")
        if importlib.util.find_spec("mcp") is None:
            raise ValueError("the package mcp is missing; run: pip install 'rl-train[mcp]'")
        return self


class ToolEntry(PluginConfig):
    """An entry of `tools`: `python`, a block `{function: ...}` or a block `{mcp: ...}`."""

    function: str | None = None
    """Typed Python function with a docstring, `my_pkg.my_module:add`, called in this process."""
    mcp: McpServer | None = None
    """Server whose tools are offered."""
    only: list[str] | None = None
    """Names of the server's tools that are offered; unset offers all."""
    builtin: Literal["python"] | None = None
    """Tool of this project: `python` runs programs in the sandbox. The text `python` is short for
    it."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> Any:
        if not isinstance(value, str):
            return value
        if value == "bash":
            raise ValueError(
                "the sandbox lets programs start no others, so there is no bash; use python, or a "
                "server behind mcp"
            )
        if ":" in value:
            return {"function": value}
        return {"builtin": value}

    @model_validator(mode="after")
    def _is_one_kind(self) -> ToolEntry:
        if sum(getattr(self, kind) is not None for kind in KINDS) != 1:
            raise ValueError("give one of function, mcp and python")
        if self.only is not None and self.mcp is None:
            raise ValueError("only chooses among the tools of mcp")
        return self

    @field_validator("function", mode="after")
    @classmethod
    def _function_is_there(cls, target: str | None) -> str | None:
        if target is not None:
            try:
                function_of(target)
            except EnvError as error:
                raise ValueError(str(error)) from error
        return target
