"""Calls of Hermes and Qwen: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

from __future__ import annotations

import json
import re

from rl_core.envs.calls.form import Call, Parsed, call_of, json_beginning

OPEN, CLOSE = "<tool_call>", "</tool_call>"
# The end of the reply closes a last call, too.
_CALL = re.compile(f"{OPEN}(.*?)(?:{CLOSE}|$)", re.DOTALL)


class Hermes:
    """JSON between tags, anywhere in a reply, as often as it likes."""

    name = "hermes"
    tags: frozenset[str] = frozenset({OPEN, CLOSE})
    marks: tuple[str, ...] = (OPEN,)
    only_first = False

    def forced(self, name: str | None) -> str:
        """Return the beginning of a call."""
        return json_beginning(f"{OPEN}\n", name, "arguments")

    def tries(self, text: str) -> bool:
        """Return True if the reply has one of the tags."""
        return OPEN in text or CLOSE in text

    def parse(self, text: str) -> Parsed:
        """Take a reply apart."""
        calls: list[Call] = []
        for written in _CALL.findall(text):
            try:
                call = call_of(json.loads(written))
            except ValueError:
                call = None
            if call is None:
                return Parsed(text, [])
            calls.append(call)
        return Parsed(_CALL.sub("", text).strip() if calls else text, calls)
