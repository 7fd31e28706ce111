"""Mapping of any dataset's columns to those of a row: `ground_truth: answer|after:####`.

A mapping gives each target an expression. The expression begins with a column, dotted where it lies
inside another one (`reward_model.ground_truth`, `answers.0`; a JSON text on the way is read), or
with `=`, which makes the rest a fixed text. Steps follow, each behind a `|` (`\\|` is the sign
itself): `after:MARK` and `before:MARK` (of the last MARK, stripped), `match:REGEX` (its first
group, or all of it), `prefix:TEXT`, `suffix:TEXT`, `number`, `text`, `json` (reads one).

A target is a column of the row, `ground_truth` (of `reward_spec`), `system` (a message before the
prompt) or a dotted place (`extra_info.index`). All other columns of the row stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Row = dict[str, object]
Step = Callable[[object], object]

_SPLIT = re.compile(r"(?<!\\)\|")
_INTEGER = re.compile(r"[-+]?\d+")


class ColumnMapError(ValueError):
    """A mapping that cannot be read, or a row that it does not fit."""


class ColumnMap:
    """A mapping, read once and applied to each row."""

    def __init__(self, expressions: Mapping[str, str]) -> None:
        """Raises: ColumnMapError naming target and step."""
        self._of_target = {
            target: _Expression(target, text) for target, text in expressions.items()
        }

    @classmethod
    def of_assignments(cls, assignments: list[str]) -> ColumnMap:
        """From `target=expression` texts. Raises: ColumnMapError."""
        expressions = {}
        for text in assignments:
            target, sign, expression = text.partition("=")
            if not sign or not target.strip():
                raise ColumnMapError(f"{text!r} is not of the form target=column|step")
            expressions[target.strip()] = expression
        return cls(expressions)

    def __bool__(self) -> bool:
        return bool(self._of_target)

    @property
    def expressions(self) -> dict[str, str]:
        """The mapping as it was written."""
        return {target: one.text for target, one in self._of_target.items()}

    @property
    def columns(self) -> set[str]:
        """The columns that it reads, dotted."""
        return {column for one in self._of_target.values() for column in one.columns}

    def apply(self, row: Mapping[str, object], over: Mapping[str, object] | None = None) -> Row:
        """The row with its targets. Args: over: what they are put into, where not the row itself.

        A column without a value gives none: its target is then as it was.
        Raises: ColumnMapError naming target, step and value.
        """
        made = dict(row if over is None else over)
        values = {target: one(row) for target, one in self._of_target.items()}
        system = values.pop("system", None)
        for target, value in values.items():
            if value is not None:
                _put(made, _PLACES.get(target, target).split("."), value)
        if system is not None:
            made["prompt"] = [{"role": "system", "content": system}, *_messages(made.get("prompt"))]
        return made


class _Expression:
    """A column and the steps behind it."""

    def __init__(self, target: str, text: str) -> None:
        self.target, self.text = target, text
        column, *steps = (part.replace("\\|", "|") for part in _SPLIT.split(text))
        self._fixed = column[1:] if column.startswith("=") else None
        self.columns = [] if self._fixed is not None else [column.strip()]
        self._column = column.strip()
        if self._fixed is None and not self._column:
            raise ColumnMapError(f"map {target}: {text!r} names no column")
        self._steps = [self._step(step) for step in steps]

    def __call__(self, row: Mapping[str, object]) -> object:
        try:
            value = self._fixed if self._fixed is not None else _column(row, self._column)
            for step in self._steps:
                value = None if value is None else step(value)
        except ValueError as error:
            raise ColumnMapError(f"map {self.target}={self.text}: {error}") from error
        return value

    def _step(self, text: str) -> Step:
        name, _, argument = text.partition(":")
        name = name.strip()
        if name in _PLAIN and not argument:
            return _PLAIN[name]
        if name in _WITH_TEXT and argument:
            return _WITH_TEXT[name](argument)
        known = ", ".join([*(f"{one}:TEXT" for one in _WITH_TEXT), *_PLAIN])
        raise ColumnMapError(f"map {self.target}: unknown step {text!r} (known: {known})")


def _column(row: Mapping[str, object], path: str) -> object:
    if path in row:
        return row[path]
    value: object = row
    for part in path.split("."):
        if isinstance(value, str):
            value = _json(value)
        if isinstance(value, list) and part.isdigit():
            value = value[int(part)] if int(part) < len(value) else None
        else:
            value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _put(made: Row, path: list[str], value: object) -> None:
    for part in path[:-1]:
        inner = made.get(part)
        made[part] = made = dict(inner) if isinstance(inner, Mapping) else {}
    made[path[-1]] = value


def _messages(prompt: Any) -> list[object]:
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    return list(prompt or [])


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    raise ValueError(f"{value!r} is not a text")


def _after(mark: str) -> Step:
    def step(value: object) -> str:
        _, found, tail = _text(value).rpartition(mark)
        if not found:
            raise ValueError(f"{_short(value)} has no {mark!r}")
        return tail.strip()

    return step


def _before(mark: str) -> Step:
    def step(value: object) -> str:
        head, found, _ = _text(value).rpartition(mark)
        if not found:
            raise ValueError(f"{_short(value)} has no {mark!r}")
        return head.strip()

    return step


def _match(pattern: str) -> Step:
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ColumnMapError(f"match:{pattern}: no regular expression ({error})") from error

    def step(value: object) -> str:
        found = compiled.search(_text(value))
        if found is None:
            raise ValueError(f"{_short(value)} does not match {pattern!r}")
        return found[1] if compiled.groups else found[0]

    return step


def _number(value: object) -> int | float:
    text = _text(value).replace(",", "").strip()
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text)


def _json(value: object) -> object:
    if isinstance(value, str):
        return json.loads(value)
    return value


def _short(value: object) -> str:
    text = repr(value)
    if len(text) <= 60:
        return text
    return f"{text[:57]}..."


_PLAIN: dict[str, Step] = {"number": _number, "text": _text, "json": _json}
_WITH_TEXT: dict[str, Callable[[str], Step]] = {
    "after": _after,
    "before": _before,
    "match": _match,
    "prefix": lambda text: lambda value: text + _text(value),
    "suffix": lambda text: lambda value: _text(value) + text,
}
_PLACES = {"ground_truth": "reward_spec.ground_truth"}
"""Targets that lie inside another column."""
