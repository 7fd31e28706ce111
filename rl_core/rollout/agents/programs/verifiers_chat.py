"""A verifiers harness that asks in this process: the model answers, its tool calls are made, until
it makes none.

The harnesses that come with verifiers start a program for each episode, which `uv` would fetch
packages for. Here an episode already has a process of its own, so the loop runs in it; every
request passes through verifiers' own interception, which keeps the trace and applies its limits.
"""

import json
from contextlib import AsyncExitStack

import openai
from verifiers.v1 import (  # pyright: ignore[reportMissingImports]
    Harness,
    HarnessConfig,
    ProgramResult,
)
from verifiers.v1.dialects.chat import message_to_wire  # pyright: ignore[reportMissingImports]
from verifiers.v1.harnesses.utils import mcp  # pyright: ignore[reportMissingImports]

__all__ = ["ChatHarness"]


class ChatConfig(HarnessConfig):
    """Settings of the harness: those that every harness has."""


class ChatHarness(Harness[ChatConfig]):
    """Chat with tools, without a program of its own."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_MCP = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        """Play a segment of the conversation."""
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            messages.append({"role": "user", "content": prompt})
        else:
            messages += [message_to_wire(one) for one in prompt or ()]
        wait_s = self.config.tool_timeout
        servers = {name: {"url": url, "timeout": wait_s} for name, url in mcp_urls.items()}
        async with AsyncExitStack() as stack:
            tools = await mcp.connect_mcp({"mcpServers": servers}, stack)
            http = openai.DefaultAsyncHttpxClient(trust_env=False)
            client = openai.AsyncOpenAI(
                base_url=endpoint, api_key=secret, timeout=None, max_retries=0, http_client=http
            )
            await stack.enter_async_context(client)
            try:
                await _converse(client, ctx.model, messages, tools)
            except openai.APIStatusError as error:
                # A limit or a stop of the task refuses the next request: the conversation is over.
                if trace.stop_condition is None:
                    return ProgramResult(exit_code=1, stdout="", stderr=_told(error))
        return ProgramResult(exit_code=0, stdout="", stderr="")


async def _converse(client, model, messages, tools):
    schemas, dispatch, servers = tools
    while True:
        asked = {"tools": schemas} if schemas else {}
        reply = await client.chat.completions.create(model=model, messages=messages, **asked)
        said = reply.choices[0].message
        messages.append(said.model_dump(exclude_none=True))
        if not said.tool_calls:
            return
        for call in said.tool_calls:
            content = await _called(call.function, dispatch, servers)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})


async def _called(function, dispatch, servers):
    """Return what a tool answers, or what is wrong with the call: the model reads either."""
    try:
        arguments = json.loads(function.arguments or "{}")
    except ValueError as error:
        return f"error: the arguments are no JSON ({error})"
    if not isinstance(arguments, dict):
        return "error: the arguments must be a JSON object"
    if function.name not in dispatch:
        return f"error: there is no tool {function.name!r}; there are {', '.join(dispatch)}"
    return await mcp.call_mcp(servers, dispatch, function.name, arguments)


def _told(error):
    body = error.body if isinstance(error.body, dict) else {}
    return str(body.get("message") or error)
