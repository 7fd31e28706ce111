"""Calls of Mistral: `[TOOL_CALLS][{"name": ..., "arguments": {...}}]`, and since its tokenizer 11
`[TOOL_CALLS]name[ARGS]{...}`."""

from __future__ import annotations

import json
import re

from rl_core.envs.calls.form import Call, Parsed, call_of

MARK, ARGS = "[TOOL_CALLS]", "[ARGS]"
_NAME = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")


class Mistral:
    """JSON after a mark, up to the reply's end."""

    name = "mistral"
    tags: frozenset[str] = frozenset({MARK, ARGS, "[CALL_ID]"})
    marks: tuple[str, ...] = (MARK,)
    only_first = False

    def forced(self, name: str | None) -> str:
        """Return the beginning of a call."""
        if name is None:
            return f'{MARK}[{{"name": "'
        return f'{MARK}[{{"name": {json.dumps(name)}, "arguments": '

    def tries(self, text: str) -> bool:
        """Return True if the reply has the mark."""
        return MARK in text

    def parse(self, text: str) -> Parsed:
        """Take a reply apart."""
        content, mark, written = text.partition(MARK)
        calls = _listed(written) if written.lstrip().startswith("[") else _named(written)
        if mark and calls:
            return Parsed(content.strip(), calls)
        return Parsed(text, [])


def _listed(written: str) -> list[Call]:
    """Return the calls of a JSON list; none where one is damaged."""
    try:
        values = json.loads(written)
    except ValueError:
        return []
    calls = [call_of(value) for value in values]
    if None not in calls:
        return [call for call in calls if call is not None]
    return []


def _named(written: str) -> list[Call]:
    """Return calls that are a name and a JSON object each; none where one is damaged."""
    calls: list[Call] = []
    for part in written.split(MARK):
        named = _NAME.match(part)
        if named is None:
            return []
        try:
            call = call_of({"name": named[1], "arguments": json.loads(part[named.end() :])})
        except ValueError:
            return []
        if call is None:
            return []
        calls.append(call)
    return calls
