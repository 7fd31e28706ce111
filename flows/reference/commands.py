"""The reference page of all commands, with their arguments and options."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer

from flows.exit_codes import MEANINGS
from flows.reference.markdown import purpose, table

TITLE = """# Commands

Lists (`recipes`, `runs`, `models`, `compare`, `status`, `config diff`) are tables in a terminal and
tab-separated lines with a header elsewhere; `--json` prints them as JSON. Colours are left out
elsewhere, and where `NO_COLOR` is set. `rl-train --install-completion` completes commands in the
shell.
"""


def commands_page() -> str:
    """Return the page as Markdown."""
    from flows.cli import app

    codes = [[str(int(code)), meaning] for code, meaning in MEANINGS.items()]
    exits = "## Exit codes\n\n" + table(["code", "meaning"], codes)
    return "\n".join([TITLE, exits, *_command(typer.main.get_command(app), "rl-train")])


# Any: the click that is bundled with typer has no public types.
def _command(command: Any, name: str) -> Iterator[str]:
    """Yield the sections of a command, or of a group's commands.

    Args: command: an object of the click that is bundled with typer.
    """
    for inner, one in getattr(command, "commands", {}).items():
        yield from _command(one, f"{name} {inner}")
    if hasattr(command, "commands"):
        return
    arguments = [one.name.upper() for one in command.params if one.param_type_name == "argument"]
    yield f"## `{' '.join([name, *arguments])}`\n\n{purpose(command.help or '')}\n"
    rows = [
        [_names(one), getattr(one, "help", "") or "", _default(one)]
        for one in command.params
        if one.name != "help"
    ]
    if rows:
        yield table(["", "", "default"], rows)


def _names(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{parameter.name.upper()}`"
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    if parameter.required:
        return "must be given"
    value = parameter.default.value if isinstance(parameter.default, Enum) else parameter.default
    if value in (None, False, ""):
        return ""
    return f"`{value}`"
