"""Requests to the program inside a sandbox, as JSON has them."""

from typing import TypedDict


class Limits(TypedDict):
    """Limits of a program."""

    memory_bytes: int
    output_bytes: int
    open_files: int
    threads: int
    files: int


class Setup(TypedDict):
    """First request: the program, and how it is run."""

    source: str
    packages: list[str]
    preload: list[str]
    program_filter: str
    limits: Limits


class Call(TypedDict):
    """A function to call, with its arguments."""

    name: str
    arguments: list[object]


class Request(TypedDict):
    """One test of the program."""

    stdin: str
    call: Call | None
    call_bare: bool
    timeout_s: float
