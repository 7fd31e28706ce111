"""HTML from the templates beside this file. A page holds its style and pictures and asks nothing from outside."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).with_name("templates")


def render(template: str, **values: Any) -> str:
    """The page that `templates/<template>` makes of `values`; a name that a template lacks is an error."""
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
    """A metric as a person reads it: three decimals, or fewer digits for what is large or tiny."""
    if value == 0 or 0.001 <= abs(value) < 1000:
        return f"{value:.3f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1e}"
