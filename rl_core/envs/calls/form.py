"""Contract of a form in which a model writes calls of tools."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str
    """JSON text of an object."""


@dataclass(frozen=True)
class Parsed:
    """A reply taken apart."""

    content: str
    """Text outside of the calls; all of it where a call cannot be read."""
    calls: list[Call]


class CallForm(Protocol):
    """Form in which a family of models writes calls."""

    name: str
    tags: frozenset[str]
    """Special tokens that stay in a reply's text, since they mark calls."""
    marks: tuple[str, ...]
    """Texts that begin calls."""
    only_first: bool
    """True if calls begin a reply or there are none."""

    def forced(self, name: str | None) -> str:
        """Return the beginning of a reply that has to call a tool. Args: name: the tool; None for
        any."""
        ...

    def parse(self, text: str) -> Parsed:
        """Take a whole reply apart; one without calls, or with damaged ones, is content."""
        ...

    def tries(self, text: str) -> bool:
        """Return True if a reply calls a tool, or was meant to: an answer that only happens to
        begin with a bracket does not."""
        ...


def call_of(value: object) -> Call | None:
    """Return the call in a JSON value `{name, arguments}` (or `parameters`); None if it is none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except ValueError:
            return None
    if not isinstance(arguments, dict):
        return None
    return Call(value["name"], json.dumps(arguments, ensure_ascii=False))


def json_beginning(mark: str, name: str | None, key: str) -> str:
    """Return the beginning of a JSON call after a mark."""
    if name is None:
        return f'{mark}{{"name": "'
    return f'{mark}{{"name": {json.dumps(name)}, "{key}": '
