"""HTML pages from the templates in this folder. A page contains its style and pictures and loads
nothing from outside."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: object) -> str:
    """Render `templates/<template>` with `values`; a name that the template lacks is an error."""
    return _environment().get_template(template).render(**values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["short"] = lambda text, length=12: str(text)[:length]
    environment.filters["signed"] = lambda value: f"{value:+.3f}"
    environment.filters["number"] = number
    return environment


def number(value: float) -> str:
    """Format a metric for people: three decimals, or fewer digits for large and tiny values."""
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.3f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1e}"
