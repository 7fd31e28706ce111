"""Tools of MCP servers: one connection of a process to each server, on an event loop of its own.

A call that the server answers with an error is the model's to read. A server that cannot be reached
is started or connected once more; if that fails, the row fails, since the model did nothing wrong.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from rl_core.envs.tool_env.result import Content, Part, as_text, picture_of
from rl_core.envs.tool_env.settings import McpServer
from rl_core.envs.tool_env.tool import Schema, ToolFault, ToolTimeout, schema_of
from rl_core.envs.tools.shared import Lease, Shared
from rl_core.errors import EnvError

if TYPE_CHECKING:
    from mcp import Client, Tool
    from mcp.client import Transport
    from mcp.types import CallToolResult

Result = TypeVar("Result")

LONGEST_LOG = 500
"""Characters of a program's error output in a message."""
END_S = 10.0
"""Seconds for a server to end."""
MEMORY_S = 60.0
"""Seconds for which a server that did not start is not tried again: each row would wait for it."""


class McpConnection:
    """A connection to a server, whose tools are listed. Thread-safe.

    Args: settings: a `McpServer` as JSON text. Raises: EnvError when there is no answer.
    """

    def __init__(self, settings: str) -> None:
        self.settings = McpServer.model_validate_json(settings)
        self._lock = threading.Lock()
        self._session: _Session | None = None
        self.tools = self._connected().tools

    def call(self, name: str, arguments: Mapping[str, object], timeout_s: float) -> CallToolResult:
        """Return what a tool answers. Raises: ToolTimeout; ToolFault when the server refuses the
        call; EnvError when it cannot be reached."""
        from mcp import MCPError

        session = self._connected()
        try:
            return session.run(session.client.call_tool(name, dict(arguments)), timeout_s)
        except concurrent.futures.TimeoutError as error:
            raise ToolTimeout(f"took longer than {timeout_s:g} s") from error
        except MCPError as error:
            if session.is_alive(timeout_s):
                raise ToolFault(str(error)) from error
        # A transport that breaks raises what it likes.
        except Exception as error:
            if session.is_alive(timeout_s):
                raise EnvError(f"{self.where}: {type(error).__name__}: {error}") from error
        session.close()
        again = self._connected()
        try:
            return again.run(again.client.call_tool(name, dict(arguments)), timeout_s)
        except concurrent.futures.TimeoutError as error:
            raise ToolTimeout(f"took longer than {timeout_s:g} s") from error
        except Exception as error:
            again.close()
            raise EnvError(f"{self.where}: the server ends during the call of {name}") from error

    @property
    def where(self) -> str:
        """The server in error messages."""
        server = self.settings
        return f"mcp {server.url or ' '.join(server.command or ())}"

    def close(self) -> None:
        """End the connection, and a server that was started here."""
        with self._lock:
            if self._session is not None:
                self._session.close()

    def _connected(self) -> _Session:
        with self._lock:
            if self._session is None or self._session.closed:
                self._session = _Session(self.settings, self.where)
            return self._session


class _Session:
    """A thread with an event loop, on which the client of a server lives until it is closed."""

    def __init__(self, settings: McpServer, where: str) -> None:
        self.settings, self.where, self.closed = settings, where, False
        self.client: Client
        """Set as soon as the server has answered, before `tools`."""
        self.tools: list[Tool] = []
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._loop = asyncio.new_event_loop()
        self._life: asyncio.Task[None] | None = None
        ready: concurrent.futures.Future[list[Tool]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True, name="mcp")
        self._thread.start()
        try:
            self.tools = ready.result(settings.start_timeout_s)
        except concurrent.futures.TimeoutError as error:
            said = self._said()
            self.close()
            wait = f"it lists no tools within {settings.start_timeout_s:g} s (start_timeout_s)"
            raise EnvError(f"{where}: {wait}{said}") from error
        # A program or address of the user's fails as it likes.
        except Exception as error:
            said = self._said()
            self.close()
            raise EnvError(f"{where}: cannot be used: {_innermost(error)}{said}") from error

    def run(self, work: Coroutine[object, object, Result], timeout_s: float) -> Result:
        """Return the result of a coroutine. Raises: TimeoutError, and what the coroutine raises."""
        if self.closed:
            work.close()
            raise ConnectionError("the connection is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def is_alive(self, timeout_s: float) -> bool:
        """Return True if the server still lists its tools."""
        try:
            self.run(self.client.list_tools(), timeout_s)
        # Whatever breaks, the server is not there.
        except Exception:
            return False
        return True

    def close(self) -> None:
        """End the session; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        if self._life is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                self._loop.call_soon_threadsafe(self._life.cancel)
        self._thread.join(END_S)
        self._log.close()

    def _run(self, ready: concurrent.futures.Future[list[Tool]]) -> None:
        try:
            self._loop.run_until_complete(self._live(ready))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    async def _live(self, ready: concurrent.futures.Future[list[Tool]]) -> None:
        from mcp import Client

        self._life = asyncio.current_task()
        try:
            async with contextlib.AsyncExitStack() as stack:
                transport = await self._transport(stack)
                self.client = await stack.enter_async_context(Client(transport))
                ready.set_result(await _all_tools(self.client))
                await asyncio.Event().wait()  # until `close` cancels it
        # An error after the tools were listed is met by the next call.
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)

    async def _transport(self, stack: contextlib.AsyncExitStack) -> Transport:
        from mcp import StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        server = self.settings
        if server.command is not None:
            program, *arguments = server.command
            started = StdioServerParameters(command=program, args=arguments, env=dict(server.env))
            return stdio_client(started, errlog=self._log)
        headers = {}
        if server.token_from is not None:
            token = os.environ.get(server.token_from)
            if not token:
                raise EnvError(f"token_from: the environment has no variable {server.token_from}")
            headers = {"Authorization": f"Bearer {token}"}
        http = await stack.enter_async_context(create_mcp_http_client(headers=headers))
        return streamable_http_client(str(server.url), http_client=http)

    def _said(self) -> str:
        """Return the end of what a program wrote to its error output."""
        self._log.seek(0)
        text = self._log.read().strip()
        return f"; it said: {text[-LONGEST_LOG:]}" if text else ""


class McpTool:
    """A tool of a server."""

    def __init__(self, connection: McpConnection, told: Tool) -> None:
        self.connection, self.name = connection, str(told.name)
        self.schema: Schema = schema_of(self.name, told.description or "", told.input_schema)

    def call(self, arguments: Mapping[str, object], timeout_s: float) -> Content:
        """Call the tool. Raises: ToolFault when it answers with an error; EnvError when it answers
        with anything but texts and pictures, or the server is gone."""
        result = self.connection.call(self.name, arguments, timeout_s)
        parts: list[Part] = []
        for part in result.content:
            if part.type == "text":
                parts.append({"type": "text", "text": part.text})
            elif part.type == "image":
                parts.append(picture_of(part.data, part.mime_type))
            else:
                raise EnvError(
                    f"{self.connection.where}: the tool {self.name} answers with {part.type}; "
                    "models read texts and pictures, so leave the tool out (only)"
                )
        text = "\n".join(part["text"] for part in parts if part["type"] == "text")
        if result.is_error:
            raise ToolFault(text or "the tool failed")
        if any(part["type"] != "text" for part in parts):
            return parts
        return text or (
            "" if result.structured_content is None else as_text(result.structured_content)
        )


_connections: Shared[str, McpConnection] = Shared(McpConnection)
_failures: dict[str, tuple[float, str]] = {}


def lease_server(server: McpServer) -> Lease[McpConnection]:
    """Lease this process's connection to a server. Raises: EnvError when there is none."""
    key = server.model_dump_json()
    failed_at, why = _failures.get(key, (0.0, ""))
    if why and time.monotonic() - failed_at < MEMORY_S:
        raise EnvError(why)
    try:
        return _connections.lease(key)
    except EnvError as error:
        _failures[key] = (time.monotonic(), str(error))
        raise


def tools_of(connection: McpConnection, only: Sequence[str] | None) -> list[McpTool]:
    """Return a server's tools. Raises: EnvError when it lacks one of those named."""
    known = {str(told.name): told for told in connection.tools}
    if missing := [name for name in only or () if name not in known]:
        raise EnvError(
            f"{connection.where}: there is no tool {missing[0]!r} (known: {', '.join(known)})"
        )
    return [McpTool(connection, known[name]) for name in (known if only is None else only)]


async def _all_tools(client: Client) -> list[Tool]:
    tools: list[Tool] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor:
            return tools


def _innermost(error: BaseException) -> str:
    """Return the reason of an error, which task groups wrap."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
