"""An agent of three turns with a tool between them that takes its time, on average two seconds:
most calls are quick, a few are slow."""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from openai import AsyncOpenAI

TURNS = 3
MEAN_S = 2.0


async def play(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Ask, wait, and ask again. Episodes of a row wait for different times."""
    messages = [*row["prompt"]]
    waits = random.Random(os.getpid())
    for turn in range(TURNS):
        reply = await client.chat.completions.create(model="policy", messages=messages)
        messages.append({"role": "assistant", "content": reply.choices[0].message.content or ""})
        messages.append({"role": "user", "content": "Check it once more."})
        if turn < TURNS - 1:
            await asyncio.sleep(waits.expovariate(1 / MEAN_S))
    return 1.0
