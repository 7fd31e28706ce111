"""Functions that tests offer to a model."""

import threading
from typing import Annotated

from PIL import Image
from pydantic import Field

from rl_core.envs.tool_env import ToolEnv

together = threading.Barrier(2)
waits = threading.Event()
"""Ends the calls of `hang`, after the test."""


def add(a: int, b: Annotated[int, Field(description="The second number.")] = 1) -> int:
    """Add two numbers."""
    return a + b


def look(at: list[str]) -> list[object]:
    """Take pictures."""
    return [part for name in at for part in (name, Image.new("RGB", (2, 3)))]


def draw() -> Image.Image:
    """Draw a picture."""
    return Image.new("L", (4, 4))


def mix() -> list[object]:
    """Draw in the colours of a printer, beside what is no part of a message."""
    return [Image.new("CMYK", (4, 4)), {"type": "text", "text": 7}]


def meet() -> str:
    """Wait for another call of this function."""
    together.wait(timeout=20)
    return "met"


def hang() -> str:
    """Never answer."""
    waits.wait(60)
    return "late"


def fail(title: str) -> str:
    """Raise an error."""
    raise ValueError(f"no {title}")


async def later(words: list[str]) -> dict[str, int]:
    """Count words."""
    return {word: len(word) for word in words}


def untyped(a, b: int) -> int:
    """Not described."""
    return b


def undescribed(a: int) -> int:
    return a


class Shouting(ToolEnv):
    """Has a tool of its own, and grades by itself."""

    def own_tools(self):
        return (self.shout,)

    def shout(self, text: str) -> str:
        """Say a text loudly."""
        return text.upper()

    def grade(self, answer: str):
        right = answer.isupper()
        return {"observations": [], "reward": float(right), "done": True, "metadata": {}}
