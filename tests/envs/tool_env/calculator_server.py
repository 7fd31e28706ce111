"""An MCP server of tests: over standard input and output, or over HTTP at the port that it is
given."""

import asyncio
import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("calculator")


@server.tool()
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


@server.tool()
async def hang() -> str:
    """Never answer."""
    await asyncio.sleep(600)
    return "late"


@server.tool()
def end() -> str:
    """End the server."""
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
