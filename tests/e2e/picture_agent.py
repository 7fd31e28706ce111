"""An agent that looks twice. It knows OpenAI's client and the standard library, nothing else."""

import base64
import struct
import zlib
from typing import Any

from openai import AsyncOpenAI

SIDE = 64


async def look_twice(row: dict[str, Any], client: AsyncOpenAI) -> list[float]:
    """Ask about the row's picture, then about a picture that the first reply decides."""
    messages: list[Any] = [*row["prompt"]]
    rewards = []
    for _ in range(2):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        said = reply.choices[0].message.content or ""
        rewards.append(float(len(said) % 3))
        url = f"data:image/png;base64,{base64.b64encode(plain_png(len(said))).decode()}"
        part = {"type": "image_url", "image_url": {"url": url}}
        asked = [part, {"type": "text", "text": "What is here?"}]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": asked}]
    return rewards


def plain_png(shade: int) -> bytes:
    """Return a picture of one colour as a PNG."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    head = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    line = b"\0" + bytes([40 * shade % 256, 90, 200]) * SIDE
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", head),
            chunk(b"IDAT", zlib.compress(line * SIDE)),
            chunk(b"IEND", b""),
        ]
    )
