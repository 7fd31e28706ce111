"""The smallest agent: it asks once and compares, as `exact_match` does without an agent."""

from __future__ import annotations

from typing import Any

from openai import AsyncOpenAI


async def play(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Return 1.0 if the answer is the row's ground truth."""
    reply = await client.chat.completions.create(model="policy", messages=row["prompt"])
    said = reply.choices[0].message.content or ""
    return float(said.strip() == str(row["reward_spec"]["ground_truth"]))
