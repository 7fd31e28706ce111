"""An MCP server of tests: over standard input and output, or over HTTP at the port that it is
given."""

import asyncio
import base64
import io
import os
import sys

from mcp.server.mcpserver import MCPServer
from mcp.types import AudioContent, ImageContent, TextContent
from PIL import Image

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
def draw(points: int) -> list[TextContent | ImageContent]:
    """Draw a square."""
    file = io.BytesIO()
    Image.new("RGB", (points, points), "red").save(file, "PNG")
    data = base64.b64encode(file.getvalue()).decode()
    return [
        TextContent(type="text", text="a square"),
        ImageContent(type="image", data=data, mime_type="image/png"),
    ]


@server.tool()
def sing() -> list[AudioContent]:
    """Sing."""
    return [AudioContent(type="audio", data="AAAA", mime_type="audio/wav")]


@server.tool()
def end() -> str:
    """End the server."""
    os._exit(1)


if __name__ == "__main__":
    if sys.argv[1:]:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run("stdio")
