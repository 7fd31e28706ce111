"""A game for two: take sticks from a heap in turn; whoever takes the last one wins.

Each move is a question of its own, without what was played before, to the model whose seat moves. A
reply that names no allowed number loses the game.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

SEATS = ("player", "opponent")
NUMBER = re.compile(r"\d+")


def starts(
    smallest: int = 3, largest: int = 20, takes: tuple[int, ...] = (2, 3, 4)
) -> Iterator[dict[str, object]]:
    """Yield the starts of the game, each once with either seat first."""
    for most in takes:
        for heap in range(smallest, largest + 1):
            for first in SEATS:
                yield {
                    # Both are on one side of the split.
                    "key": f"{heap} {most}",
                    "prompt": question(heap, most),
                    "reward_spec": {"method": "game", "ground_truth": "win"},
                    "extra_info": {"heap": heap, "most": most, "first": first},
                }


def question(heap: int, most: int) -> list[ChatCompletionMessageParam]:
    """Return what the seat that moves is asked."""
    allowed = [str(number) for number in range(1, most + 1)]
    text = (
        f"There are {heap} sticks. Take {', '.join(allowed[:-1])} or {allowed[-1]}. Whoever takes "
        "the last stick wins. How many do you take? Answer with the number only."
    )
    return [{"role": "user", "content": text}]


async def play(row: dict[str, Any], client: AsyncOpenAI) -> dict[str, object]:
    """Play a game. Returns: 1 for the seat that won and 0 for the other."""
    start = row["extra_info"]
    heap, moves, allowed = start["heap"], 0, True
    mover, other = SEATS if start["first"] == SEATS[0] else SEATS[::-1]
    while heap and allowed:
        reply = await client.chat.completions.create(
            model=mover, messages=question(heap, start["most"]), max_tokens=4
        )
        found = NUMBER.search(reply.choices[0].message.content or "")
        taken = int(found.group()) if found else 0
        allowed = 1 <= taken <= min(start["most"], heap)
        heap, moves = heap - taken if allowed else heap, moves + 1
        mover, other = other, mover
    # The one who moved last is now `other`.
    winner = other if allowed else mover
    wins = {seat: float(seat == winner) for seat in SEATS}
    return {"reward": wins, "metrics": {"moves": moves, "forbidden_moves": float(not allowed)}}
