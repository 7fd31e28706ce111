"""Exit codes of `rl-train`, which stay the same from version to version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import typer


class ExitCode(IntEnum):
    """Exit code of a command."""

    DONE = 0
    MACHINE_ERROR = 1
    USER_ERROR = 2
    STOPPED = 3
    INTERRUPTED = 130


MEANINGS = {
    ExitCode.DONE: "Done.",
    ExitCode.MACHINE_ERROR: "Something failed that a repetition may get past, such as a server "
    "that does not answer; or a question was answered with no: `doctor` found a problem, `status` "
    "a service that does not run, `lineage --verify` a change, `reproduce --run` other weights, "
    "`envs try` no verdict.",
    ExitCode.USER_ERROR: "Something that you can put right, said in one message.",
    ExitCode.STOPPED: "A run ended as its recipe's `watch` asks, or a chain because a stage was "
    "not promoted.",
    ExitCode.INTERRUPTED: "Ctrl-C or SIGTERM; the same command continues.",
}
"""Meaning of each code, for the reference."""


@contextmanager
def continues_when_interrupted() -> Iterator[None]:
    """End the command with its code and one line when the block is interrupted."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(
            "interrupted; the same command continues from the last complete checkpoint", err=True
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None
