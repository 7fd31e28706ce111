"""The command `rl-train doctor`: problems of this machine, each with its fix."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flows.lists.listing import Json
from rl_core.runtime.home import Home

if TYPE_CHECKING:
    from rl_core.doctor.finding import Finding

SOMETHING_IS_WRONG = 1
_COLOURS = {"good": "green", "warning": "yellow", "problem": "red"}


class DoctorFormat(StrEnum):
    """Output format of the findings."""

    TEXT = "text"
    """Lines for people."""
    JSON = "json"
    """One list of objects."""


def doctor(
    format: Annotated[
        DoctorFormat, typer.Option(help="How to print the findings")
    ] = DoctorFormat.TEXT,
    as_json: Json = False,
) -> None:
    """Check packages, devices, memory, disk, services and sandbox; exit code 1 if something does
    not work."""
    from rl_core.doctor.examination import examine
    from rl_core.doctor.finding import Level

    format = DoctorFormat.JSON if as_json else format
    found = []
    for finding in examine(Home.default()):
        found.append(finding)
        if format is DoctorFormat.TEXT:
            _print(finding)
    if format is DoctorFormat.JSON:
        typer.echo(json.dumps([asdict(finding) for finding in found], indent=2))
    else:
        counts = {}
        for level in Level:
            counts[level] = sum(finding.level is level for finding in found)
        typer.echo(", ".join(f"{count} {level}" for level, count in counts.items()))
    if any(finding.level is Level.PROBLEM for finding in found):
        raise typer.Exit(SOMETHING_IS_WRONG)


def _print(finding: Finding) -> None:
    colour = None if os.environ.get("NO_COLOR") else _COLOURS[finding.level]
    level = typer.style(f"{finding.level:8}", fg=colour)
    typer.echo(f"{level} {finding.name:26} {finding.found}")
    if finding.fix:
        typer.echo(f"{'':8} {'':26} → {finding.fix}")
