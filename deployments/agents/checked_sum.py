"""A small agent: it asks for an answer, and then whether that answer is right.

It knows nothing of this project: a row with a prompt and a true answer, and OpenAI's client.
"""

from __future__ import annotations

import re
from typing import Any

from openai import AsyncOpenAI

NUMBER = re.compile(r"-?\d+")
CHECK = "Check your answer. Reply with the right number only."


async def play(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Return the reward of an episode: 0.3 for a right first answer and 0.7 for a right last
    one."""
    truth = str(row["reward_spec"]["ground_truth"])
    messages = [*row["prompt"]]
    answers = []
    for question in (None, CHECK):
        if question is not None:
            messages.append({"role": "user", "content": question})
        reply = await client.chat.completions.create(
            model="policy", messages=messages, max_tokens=16
        )
        said = reply.choices[0].message.content or ""
        messages.append({"role": "assistant", "content": said})
        found = NUMBER.findall(said)
        answers.append(found[-1] if found else "")
    return 0.3 * (answers[0] == truth) + 0.7 * (answers[1] == truth)
