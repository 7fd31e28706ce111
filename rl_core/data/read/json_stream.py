"""Streaming of JSON: yields a list's values one at a time, so that a large file is never in memory
as a whole."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from rl_core.errors import DataError

CHUNK = 2**20
_decode = json.JSONDecoder().raw_decode
_SPACE = " \t\r\n"


class UnreadableJson(DataError):
    """A text that is not valid JSON, or not accepted here; the message has the reason."""


def parse(text: str) -> Any:
    """Parse a JSON text; integers are exact. Raises: UnreadableJson."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(why(error)) from error


def why(error: Exception) -> str:
    """Describe the error of a text that did not parse."""
    if isinstance(error, json.JSONDecodeError):
        return f"invalid JSON at column {error.colno} ({error.msg})"
    return "nested too deeply" if isinstance(error, RecursionError) else f"invalid JSON ({error})"


def is_list(file: Path) -> bool:
    """Return True if a document begins as a list."""
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as text:
        while chunk := text.read(CHUNK):
            if chunk.strip(_SPACE):
                return chunk.lstrip(_SPACE).startswith("[")
    return False


def list_values(file: Path) -> Iterator[tuple[Any, str]]:
    """Yield the values of a document that is a list, each with its source text. Raises: DataError
    with the line."""
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as text:
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
                value, end = _decode(self.buffer, self.position)
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
