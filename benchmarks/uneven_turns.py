"""An agent of four turns, most of which are short: one in five has a long reply. A tool between
them takes half a second on average."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from openai import AsyncOpenAI

TURNS = 4
SHORT, LONG, LONG_SHARE = 8, 64, 0.2
"""Most tokens of a reply, and the share of long ones."""
MEAN_S = 0.5


async def play(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Ask, wait, and ask again. Each episode of a row draws its own lengths and waits."""
    messages = [*row["prompt"]]
    for _ in range(TURNS):
        size = LONG if random.random() < LONG_SHARE else SHORT
        reply = await client.chat.completions.create(
            model="policy", messages=messages, max_tokens=size
        )
        messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
        messages.append({"role": "user", "content": "Go on."})
        await asyncio.sleep(random.expovariate(1 / MEAN_S))
    return 1.0
