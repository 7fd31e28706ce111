"""A lineage as text, JSON or HTML, with the result of a verification."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING

from rl_core.reporting.pages import render

if TYPE_CHECKING:
    from rl_core.data.store.changes import Check
    from rl_core.tracking.lineage import Lineage


class LineageFormat(StrEnum):
    """Output format of a lineage."""

    TEXT = "text"
    """One line per link."""
    JSON = "json"
    """The whole lineage as one object."""
    HTML = "html"
    """A self-contained page."""


def show_lineage(
    lineage: Lineage, form: LineageFormat, checks: Sequence[Check] | None = None
) -> str:
    """Format the lineage.

    Args: checks: results of a verification; None if there was none.
    """
    if form is LineageFormat.HTML:
        return render("lineage.html", lineage=lineage, checks=checks)
    if form is LineageFormat.JSON:
        found = {} if checks is None else {"checks": [asdict(check) for check in checks]}
        return json.dumps(lineage.to_dict() | found, indent=2)
    return "\n".join([str(lineage), *map(str, checks or ())])
