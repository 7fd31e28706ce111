"""The option `--dry-run` of `rl-train run`: the plan of one recipe, or of each stage of a chain."""

from collections.abc import Sequence

from flows.console import Console
from flows.dry_run import print_plan
from rl_core.runs.chain.chains import LoadedChain, Stage, is_chain, load_chain
from rl_core.runs.recipes import dump_recipe, find_recipe, load_recipe


def print_plans(recipe: str, overrides: Sequence[str], profile: str | None) -> None:
    """Print the plan of a recipe, or of all stages of a chain, in which later stages are planned
    with the model that the first one starts from. Raises: UserError as `print_plan` does."""
    console = Console()
    if not is_chain(recipe):
        notes: list[str] = []
        settings = load_recipe(recipe, overrides, profile, notes.append)
        print_plan(settings, dump_recipe(settings), find_recipe(recipe).parent, console)
        _print_notes(notes, console)
        return
    chain = load_chain(recipe, overrides, profile)
    for number, stage in enumerate(chain.stages, start=1):
        console.say(f"# stage {number} of {len(chain.stages)}: {stage.name}, {_models(stage)}")
        with chain.naming(stage):
            _print_stage(chain, stage, profile, console)


def _print_stage(chain: LoadedChain, stage: Stage, profile: str | None, console: Console) -> None:
    notes: list[str] = []
    print_plan(
        chain.planned(stage, profile, notes.append),
        dump_recipe(stage.recipe),
        find_recipe(stage.source).parent,
        console,
        cache=None if stage.starts_from is None else f"known after stage {stage.starts_from}",
    )
    _print_notes(notes, console)
    console.say("")


def _print_notes(notes: Sequence[str], console: Console) -> None:
    for text in notes:
        console.say(f"note  {text}")


def _models(stage: Stage) -> str:
    others = []
    for key, name in stage.uses.items():
        if name != stage.starts_from:
            others.append(f"{key} is {name}'s")
    start = stage.starts_from
    return ", ".join([f"starts from {start or stage.recipe.model.path}", *others])
