"""The group `rl-train config`: recipes with their defaults, and what differs between two."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import BaseModel

from flows.lists.listing import Entry, Json, print_list

config = typer.Typer(help="Show and compare recipes.", no_args_is_help=True)

RECIPE = "Name of a shipped recipe, or a .yaml path"
Profile = Annotated[str | None, typer.Option(help="Placement: cpu, one_gpu, one_node, many_nodes")]
_UNSET = "unset"


@config.command()
def show(
    recipe: Annotated[str, typer.Argument(help=RECIPE)],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Dotted assignments, e.g. algorithm.clip_high=0.28")
    ] = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """Print a recipe with every default, as YAML."""
    import json

    from rl_core.runs.recipes import dump_recipe, load_recipe, shown_values

    loaded = load_recipe(recipe, overrides or [], profile)
    if as_json:
        typer.echo(json.dumps(shown_values(loaded), indent=2, ensure_ascii=False))
    else:
        typer.echo(dump_recipe(loaded), nl=False)


@config.command()
def diff(
    recipe: Annotated[str, typer.Argument(help=RECIPE)],
    other: Annotated[
        str | None, typer.Argument(help="Another recipe; unset: the defaults of the first one")
    ] = None,
    profile: Profile = None,
    as_json: Json = False,
) -> None:
    """List the settings in which a recipe differs from the defaults, or from another recipe."""
    from rl_core.runs.recipes import load_recipe, shown_values
    from rl_core.runs.run_plan import flatten

    loaded = load_recipe(recipe, (), profile)
    first = flatten(shown_values(loaded))
    if other is None:
        second, names = flatten(_defaults_beside(loaded)), ("default", recipe)
    else:
        second, names = flatten(shown_values(load_recipe(other, (), profile))), (other, recipe)
    entries: list[Entry] = []
    for key in dict.fromkeys([*first, *second]):
        value, against = (one.get(key, _UNSET) for one in (first, second))
        if str(value) != str(against):
            entries.append({"key": key, names[0]: against, names[1]: value})
    if not as_json:  # a rate has more digits than a table's numbers
        entries = [{name: str(value) for name, value in one.items()} for one in entries]
    print_list("Settings that differ", ("key", *names), entries, as_json)


def _defaults_beside(section: BaseModel) -> dict[str, object]:
    """Return the default of every key that a section has, also within its own sections; a key
    without a default is left out."""
    found: dict[str, object] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            found[field.alias or name] = _defaults_beside(value)
        elif not field.is_required():
            default = field.get_default(call_default_factory=True)
            found[field.alias or name] = list(default) if isinstance(default, tuple) else default
    return found
