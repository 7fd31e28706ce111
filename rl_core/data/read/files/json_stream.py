"""Streaming of JSON: yields a list's values one at a time, so that a large file is never in memory
as a whole."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from rl_core.data.read.files.compressed import opened_text
from rl_core.errors import DataError

CHUNK = 2**20
_SPACE = " \t\r\n"


class UnreadableJson(DataError):
    """A text that is not valid JSON, or not accepted here; the message has the reason."""


class _RepeatedKey(ValueError):
    """An object that gives one key two values, of which a parser would keep the last."""


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    names = [name for name, _ in pairs]
    repeated = next(name for name in names if names.count(name) > 1)
    raise _RepeatedKey(f"the key {repeated!r} is there twice")


_decoder = json.JSONDecoder(object_pairs_hook=_object)
_end_of = json.JSONDecoder().raw_decode


def parse(text: str) -> object:
    """Parse a JSON text; integers are exact. Raises: UnreadableJson, also for an object that has a
    key twice."""
    try:
        return _decoder.decode(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(why(error)) from error


def why(error: Exception) -> str:
    """Describe the error of a text that did not parse."""
    if isinstance(error, json.JSONDecodeError):
        return f"invalid JSON at column {error.colno} ({error.msg})"
    if isinstance(error, _RepeatedKey):
        return str(error)
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"invalid JSON ({error})"


def is_list(file: Path) -> bool:
    """Return True if a document begins as a list."""
    with opened_text(file) as text:
        while chunk := text.read(CHUNK):
            if chunk.strip(_SPACE):
                return chunk.lstrip(_SPACE).startswith("[")
    return False


def list_values(file: Path) -> Iterator[tuple[object, str]]:
    """Yield the values of a document that is a list, each with its source text; an UnreadableJson
    for an object that has a key twice. Raises: DataError with the line."""
    with opened_text(file) as text:
        reader = _Reader(text, file)
        reader.expect("[")
        if reader.peek() == "]":
            reader.expect("]")
        else:
            while True:
                yield reader.value()
                if reader.peek() != ",":
                    break
                reader.expect(",")
            reader.expect("]")
        if reader.peek():
            raise reader.error("invalid JSON (text after the end of the list)")


class _Reader:
    """Window onto the text that grows until the next value is complete."""

    def __init__(self, text: IO[str], file: Path) -> None:
        self.text, self.file = text, file
        self.buffer, self.position = "", 0
        self.line = 1

    def peek(self) -> str:
        """Return the next character that is not white space; empty at the end."""
        while True:
            while self.position < len(self.buffer):
                if (character := self.buffer[self.position]) not in _SPACE:
                    return character
                self.position += 1
            if not self._grow(CHUNK):
                return ""

    def expect(self, character: str) -> None:
        found = self.peek()
        if found != character:
            got = f"got {found!r}" if found else "the file ends"
            raise self.error(f"invalid JSON (expected {character!r}, {got})")
        self.position += 1

    def value(self) -> tuple[Any, str]:
        self.peek()
        size = CHUNK
        while True:
            try:
                value, end = _decoder.raw_decode(self.buffer, self.position)
            except _RepeatedKey as error:
                # Known before the value is read to its end, so it may not be whole yet.
                try:
                    _, end = _end_of(self.buffer, self.position)
                except ValueError:
                    if self._grow(size):
                        size *= 2
                        continue
                    raise self.error(why(error)) from error
                value = UnreadableJson(why(error))
            except (ValueError, RecursionError) as error:
                if isinstance(error, RecursionError) or not self._grow(size):
                    raise self.error(why(error)) from error
                size *= 2
                continue
            if end == len(self.buffer) and self._grow(size):
                continue  # a number may go on in the next chunk
            source, self.position = self.buffer[self.position : end], end
            return value, source

    def error(self, said: str) -> DataError:
        line = self.line + self.buffer.count("\n", 0, self.position)
        return UnreadableJson(f"{self.file}:{line}: {said}")

    def _grow(self, size: int) -> bool:
        self.line += self.buffer.count("\n", 0, self.position)
        chunk = self.text.read(size)
        self.buffer, self.position = self.buffer[self.position :] + chunk, 0
        return bool(chunk)
