"""The reference page of all recipe keys, section by section."""

from __future__ import annotations

from collections.abc import Iterator

from flows.reference.markdown import purpose
from flows.reference.settings import Settings, keys, sections
from schemas.recipe import Recipe

TITLE = """# Recipe keys

What a recipe leaves out has its default; `rl-train run RECIPE --dry-run` prints all of it,
resolved. The blocks `algorithm`, `rewards` and `environments` hold the keys of
[plug-ins](plugins.md); `bundle`, `backend`, `stack`, `engine`, `sync` and `trainer` replace a part
of the training by a class of your own ([extending](../extending.md#where-each-part-plugs-in)).

A number is a finite number within ±2^53. Booleans are none, and YAML reads `yes`, `no`, `on` and
`off` as booleans; a number in quotes, or `1e-5`, is read as one.
"""


def recipe_page() -> str:
    """Return the page as Markdown."""
    return "\n".join([TITLE, *_section(Recipe, "", {})])


def _section(model: Settings, path: str, described: dict[Settings, str]) -> Iterator[str]:
    """Yield a section's keys, then its subsections; a section that was described before is only
    referred to."""
    below = []
    for name, f in model.model_fields.items():
        place = f"{path}.{name}".strip(".")
        below += [(inner, place) for inner in sections(f.annotation)]
    for inner, place in below:
        described.setdefault(inner, place)
    yield (
        "## "
        f"{f'`{path}`' if path else 'Recipe'}\n\n{purpose(model)}\n\n{keys(model, path, described)}"
    )
    for inner, place in below:
        if described[inner] == place:
            yield from _section(inner, place, described)
