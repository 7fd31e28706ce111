"""Calls as Python: `[f(a=1), g(b="x")]` (Llama 3.2 and 4, LFM2)."""

from __future__ import annotations

import ast
import json
import re

from rl_core.envs.calls.form import Call, Parsed

OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
_CALLED = re.compile(r"\s*\[\s*[A-Za-z_][\w.]*\(")


class Pythonic:
    """A list of Python calls with literal keyword arguments; LFM2 puts tags around it."""

    name = "pythonic"
    tags: frozenset[str] = frozenset({OPEN, CLOSE})
    marks: tuple[str, ...] = (OPEN, "[")
    only_first = True

    def forced(self, name: str | None) -> str:
        """Return the beginning of a call."""
        return "[" if name is None else f"[{name}("

    def tries(self, text: str) -> bool:
        """Return True if the reply has the tag, or begins as a list of calls."""
        return OPEN in text or _CALLED.match(text) is not None

    def parse(self, text: str) -> Parsed:
        """Take a reply apart."""
        written, _, after = text.strip().removeprefix(OPEN).partition(CLOSE)
        try:
            tree = ast.parse(written.strip(), mode="eval").body
            calls = [_call(node) for node in tree.elts] if isinstance(tree, ast.List) else []
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            return Parsed(text, [])
        if calls:
            return Parsed(after.strip(), calls)
        return Parsed(text, [])


def _call(node: ast.expr) -> Call:
    """Return a call. Raises: ValueError when it is none with literal keyword arguments alone."""
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("no call with keyword arguments")
    arguments = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("** in a call")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return Call(ast.unparse(node.func), json.dumps(arguments, ensure_ascii=False))
