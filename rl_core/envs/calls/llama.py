"""Calls of Llama 3: a reply that is `{"name": ..., "parameters": {...}}`, several parted by `;`."""

from __future__ import annotations

import json

from rl_core.envs.calls.form import Call, Parsed, call_of, json_beginning

TAG = "<|python_tag|>"


class Llama:
    """JSON that is the whole reply, with or without a tag before it."""

    name = "llama"
    tags: frozenset[str] = frozenset({TAG})
    marks: tuple[str, ...] = (TAG, "{")
    only_first = True

    def forced(self, name: str | None) -> str:
        """Return the beginning of a call."""
        return json_beginning("", name, "parameters")

    def tries(self, text: str) -> bool:
        """Return True if the reply has the tag, or is an object that names something."""
        said = text.strip()
        return TAG in said or (said.startswith("{") and '"name"' in said)

    def parse(self, text: str) -> Parsed:
        """Take a reply apart."""
        rest = text.strip().removeprefix(TAG).strip()
        calls: list[Call] = []
        decoder = json.JSONDecoder()
        while rest:
            try:
                value, stop = decoder.raw_decode(rest)
            except ValueError:
                return Parsed(text, [])
            call = call_of(value)
            if call is None:
                return Parsed(text, [])
            calls.append(call)
            rest = rest[stop:].lstrip().removeprefix(";").lstrip()
        if calls:
            return Parsed("", calls)
        return Parsed(text, [])
