"""A lineage as text, JSON or HTML, with what a verification found."""

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
    """How a lineage is printed."""

    TEXT = "text"
    """A line per link."""
    JSON = "json"
    """All of it as one object."""
    HTML = "html"
    """A page that stands by itself."""


def show_lineage(lineage: Lineage, form: LineageFormat, checks: Sequence[Check] | None = None) -> str:
    """The lineage in words. Args: checks: what a verification found; None when there was none."""
    if form is LineageFormat.HTML:
        return render("lineage.html", lineage=lineage, checks=checks)
    if form is LineageFormat.JSON:
        found = {} if checks is None else {"checks": [asdict(check) for check in checks]}
        return json.dumps(lineage.to_dict() | found, indent=2)
    return "\n".join([str(lineage), *map(str, checks or ())])
