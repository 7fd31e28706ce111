"""The page of what five public documents promise of such a system, and where each promise is kept.

The table is `promises.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, field_validator

from flows.reference.markdown import table

TITLE = """# What the seed documents promise

This project began with five public documents: UniRL's pages about data and about trainers,
Nemotron's about preparing RL data for omni3, SkyRL's about its data format and verl's about
`DataProto`. The tables below list what they promise, and what the project's own description adds:
the lines of the document, where the code keeps the promise, and a test that fails when it does not.
A remark says where something has another name here or is stricter.
"""


class Promise(BaseModel):
    """A promise, or several that one place keeps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    numbers: list[int]
    """Numbers in the list of all promises, counted from 1."""
    promise: str
    """The promise, in one sentence."""
    lines: str
    """Lines of the document."""
    kept: list[str]
    """Places that keep it: `path.py:Symbol`, `path.yaml:key`, a page, `recipe KEY`, a command."""
    test: list[str]
    """Tests that fail when it is broken, as `path.py::name`."""
    note: str = ""
    """Remark about another name, or a stricter rule, in this project."""

    @field_validator("numbers", "kept", "test", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: object) -> object:
        if isinstance(value, list):
            return value
        return [value]

    @field_validator("lines", mode="before")
    @classmethod
    def _one_line_is_a_text(cls, value: object) -> object:
        if isinstance(value, int):
            return str(value)
        return value


class Document(BaseModel):
    """A document and its promises."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    """Heading in the page."""
    about: str
    """Contents of the document, in one sentence."""
    first: int
    """Number of its first promise."""
    last: int
    """Number of its last promise."""
    promises: list[Promise]
    """All of them, by number."""


@cache
def seed_documents() -> list[Document]:
    """Return the documents in their order."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return [Document.model_validate(one) for one in yaml.safe_load(text)["documents"]]


def promises_page() -> str:
    """Return the page as Markdown."""
    return "\n".join([TITLE, *map(_section, seed_documents())])


def _section(document: Document) -> str:
    columns = ["", "promise", "lines", "kept by", "test"]
    rows = [list(_row(one)) for one in document.promises]
    return f"## {document.title}\n\n{document.about}\n\n{table(columns, rows)}"


def _row(one: Promise) -> Iterator[str]:
    first, last = one.numbers[0], one.numbers[-1]
    yield str(first) if first == last else f"{first}-{last}"
    yield f"{one.promise} *{one.note}*" if one.note else one.promise
    yield one.lines
    yield ", ".join(f"`{place}`" for place in one.kept)
    yield ", ".join(f"`{test}`" for test in one.test)
