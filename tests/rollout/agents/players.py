"""Agents of tests. They know OpenAI's client and nothing else."""

import asyncio
import os
import time
from typing import Any

from openai import APIError, AsyncOpenAI

from tests.serving.fuzzing import fuzz


async def ask(client: AsyncOpenAI, messages: list[dict[str, Any]], **options: Any) -> str:
    """Ask with a history, and append the reply to it."""
    reply = await client.chat.completions.create(
        model="gpt-of-yours",
        messages=messages,  # type: ignore[arg-type]
        **options,
    )
    said = reply.choices[0].message.content or ""
    messages.append({"role": "assistant", "content": said})
    return said


async def three_turns(row: dict[str, Any], client: AsyncOpenAI) -> float:
    messages = [*row["prompt"]]
    for _ in range(3):
        await ask(client, messages)
        messages.append({"role": "user", "content": "go on"})
    return 1.0


async def talker(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Ask for as many tokens as the row says; four times for few."""
    size = row["reward_spec"]["ground_truth"]
    messages = [*row["prompt"]]
    for _ in range(4 if size == 1 else 1):
        await ask(client, messages, max_tokens=size)
        messages.append({"role": "user", "content": "go on"})
    return 1.0


async def patient(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Two turns with a pause between them; pays for the vowels of the last."""
    messages = [*row["prompt"]]
    await ask(client, messages)
    await asyncio.sleep(1.0)
    messages.append({"role": "user", "content": "again"})
    said = await ask(client, messages)
    return sum(letter in "aeiouAEIOU" for letter in said) / max(1, len(said))


async def forgetful(row: dict[str, Any], client: AsyncOpenAI) -> list[float]:
    """Two turns, then one without the first two, as an agent that shortens its history does."""
    messages = [*row["prompt"]]
    for _ in range(2):
        await ask(client, messages)
        messages.append({"role": "user", "content": "go on"})
    await ask(client, messages[-1:])
    return [1.0, 2.0, 4.0]


async def conversation(row: dict[str, Any], client: AsyncOpenAI) -> list[dict[str, Any]]:
    messages = [*row["prompt"]]
    await ask(client, messages)
    return [*row["prompt"], {"role": "assistant", "content": "the answer is 42"}]


async def hasty(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Leave every third request of the first rows before it is answered, and ask again. It waits
    for the other rows, whose agents start later."""
    messages = [*row["prompt"]]
    if row["reward_spec"]["ground_truth"] in range(0, 16, 3):
        early = asyncio.ensure_future(ask(client, [*messages]))
        await asyncio.sleep(0.001 * row["reward_spec"]["ground_truth"])
        early.cancel()
    await ask(client, messages)
    return 1.0


async def moody(row: dict[str, Any], client: AsyncOpenAI) -> Any:
    """Do what the row says."""
    await ask(client, [*row["prompt"]])
    does = row["reward_spec"]["ground_truth"]
    if does == "raises":
        raise RuntimeError("out of mind")
    if does == "dies":
        os._exit(7)
    if does == "hangs":
        time.sleep(600)
    return {"nothing": None, "words": "good", "fine": 0.5}[does]


async def idle(row: dict[str, Any], client: AsyncOpenAI) -> float:
    return 1.0


async def fuzzer(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Send whatever the OpenAPI document allows and forbids; 1.0 if the server never failed."""
    await ask(client, [*row["prompt"]])
    url = str(client.base_url).removesuffix("/v1/")
    said = await asyncio.to_thread(fuzz, url, client.api_key, 10, "not_a_server_error")
    if not said.endswith("\n0"):
        raise RuntimeError(said[-4000:])
    return 1.0


async def by_turns(row: dict[str, Any], client: AsyncOpenAI) -> Any:
    """Two seats that speak in turn, twice, each with its own view of the conversation."""
    what = row["reward_spec"]["ground_truth"]
    order = {"o alone": "o", "nobody": "z"}.get(what, "xoxo")
    views: dict[str, list[dict[str, Any]]] = {seat: [*row["prompt"]] for seat in order}
    for seat in order:
        try:
            reply = await client.chat.completions.create(model=seat, messages=views[seat])  # type: ignore[arg-type]
        except APIError:
            if what != "forgiving":
                raise
            return {"x": 0.0, "o": 1.0}
        said = reply.choices[0].message.content or ""
        for other, view in views.items():
            view.append({"role": "assistant" if other == seat else "user", "content": said})
        if len(views) == 1:
            views[seat].append({"role": "user", "content": "go on"})
    return {
        "together": 0.5,
        "unknown reward": {"x": 1.0, "o": 0.0, "z": 0.0},
        "missing reward": {"x": 1.0},
        "list": [1.0] * 4,
    }.get(what, {"x": 1.0, "o": -1.0})


async def by_vowels(row: dict[str, Any], client: AsyncOpenAI) -> dict[str, float]:
    """Three seats that speak once each; two are paid for the vowels that they said."""
    rewards = {}
    for seat, pay in (("x", 1.0), ("other", 0.0), ("o", 0.5)):
        reply = await client.chat.completions.create(model=seat, messages=[*row["prompt"]])
        said = reply.choices[0].message.content or ""
        rewards[seat] = pay * sum(one in "aeiouAEIOU" for one in said) + pay / 10
    return rewards


def picture(content: str) -> dict[str, Any]:
    """A message that shows a PNG. Args: content: its bytes in base64."""
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{content}"}}
    return {"role": "user", "content": [part, {"type": "text", "text": "And here?"}]}


async def looker(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Ask about the row's pictures, then about one of its own, as of a page, then go on."""
    messages = [*row["prompt"]]
    await ask(client, messages)
    messages.append(picture(row["screenshot"]))
    await ask(client, messages)
    messages.append({"role": "user", "content": "Is <image> a word?"})
    await ask(client, messages)
    return float(len(row["images"]))


async def swapper(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Go on with a history in which another picture took the place of the one that was seen."""
    messages = [picture(row["screenshot"])]
    await ask(client, messages)
    messages.append({"role": "user", "content": "go on"})
    await ask(client, messages)
    messages.append({"role": "user", "content": "go on"})
    part = {"type": "image_url", "image_url": {"url": row["images"][0]}}
    messages[0] = {"role": "user", "content": [part, messages[0]["content"][1]]}
    await ask(client, messages)
    return 1.0


async def clumsy(row: dict[str, Any], client: AsyncOpenAI) -> float:
    """Show what the row says is a picture."""
    messages = [*row["prompt"]]
    await ask(client, messages)
    messages.append(picture(row["screenshot"]))
    await ask(client, messages)
    return 1.0
