"""Every command that a page prints can be typed: the command line takes it, its recipe is there,
and the recipe has its settings. Those that take no time are run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from flows.cli import app
from flows.sweep.grid import combinations
from rl_core.errors import UserError
from rl_core.runs.chain.chains import is_chain
from rl_core.runs.recipes import chain_names, find_recipe, load_recipe, recipe_names
from rl_core.runs.starters import starter_names
from tests.command import REPOSITORY, answer
from tests.flows.page_commands import Command, commands, makes

ALL = commands()
NUMBERS = {"N": "1", "VERSION": "1"}
"""Words that stand for a number that a reader knows."""
RUN_AT_ONCE = ("recipes", "runs", "models", "config")
"""Commands that are run as they stand where no file of a reader's is named."""


def parsed(words: tuple[str, ...]) -> dict[str, Any]:
    """The parameters that the command line makes of the words, without running anything. Raises:
    TyperError or Exit."""
    command: Any = typer.main.get_command(app)
    context, rest = None, list(words)
    while isinstance(command, TyperGroup) and rest:
        context = typer.Context(command, parent=context, info_name=command.name)
        _, command, rest = command.resolve_command(context, rest)
    if isinstance(command, TyperGroup):
        return {}  # a group alone prints its help
    return command.make_context(command.name, rest, parent=context).params


def refused_words(words: tuple[str, ...]) -> str | None:
    """Why no such command or option is there; None where only a value is missing."""
    try:
        parsed(words)
    except typer.Exit:
        return None  # --help
    except TyperException as error:
        said = error.format_message()
        return None if "issing" in said or "requires an argument" in said else said
    return None


def test_there_are_commands_to_look_at():
    assert len([one for one in ALL if one.in_block]) > 50 and len(ALL) > 150


def test_the_command_line_takes_every_command_of_a_page():
    refused: list[str] = []
    for one in ALL:
        words = tuple(NUMBERS.get(word, word) for word in one.words if word not in ("…", "..."))
        if not one.in_block and not one.whole:
            continue
        if said := refused_words(words):
            refused.append(f"{one}: {said}")
    assert not refused, "\n".join(refused)


def refusal(one: Command) -> str | None:
    """Why a run or sweep of a page could not begin, for a shipped recipe or a starter's."""
    try:
        found = parsed(one.words)
    except TyperException:
        return None  # a command that is mentioned without its arguments
    recipe = str(found["recipe"])
    if recipe.endswith(".yaml") or recipe.isupper():
        recipe = "text"
    try:
        if is_chain(recipe):
            return None
        if one.words[0] == "sweep":
            runs = combinations(found["assignments"])
        else:
            runs = [list(found.get("overrides") or [])]
        for run in runs:
            load_recipe(recipe, run, found["profile"])
    except UserError as error:
        return str(error)
    return None


FOREIGN = ("actor_rollout_ref.",)
"""Keys of other systems, which docs/coming-from.md shows refused."""


def test_the_recipes_and_settings_of_every_run_are_there():
    refused: list[str] = []
    for one in ALL:
        if one.words[:1] not in (("run",), ("sweep",)) or not one.whole:
            continue
        if any(word.startswith(FOREIGN) for word in one.words):
            assert refusal(one) is not None
        elif said := refusal(one):
            refused.append(f"{one}: {said}")
    assert not refused, "\n".join(refused)


def test_every_starter_that_a_page_names_is_there():
    for one in ALL:
        if "--from" in one.words[:-1] and one.words[0] == "init":
            named = one.words[one.words.index("--from") + 1]
            assert named.isupper() or named in starter_names(), str(one)


def quick() -> list[tuple[str, ...]]:
    """The commands that take no time and need nothing of a reader's."""
    found: dict[tuple[str, ...], None] = {}
    shipped = {*recipe_names(), *chain_names()}
    for one in ALL:
        if not one.whole or any(word.endswith((".yaml", ".jsonl")) for word in one.words):
            continue
        plan = "--dry-run" in one.words and one.words[0] in ("run", "sweep")
        if (plan and one.words[1] in shipped) or one.words[0] in RUN_AT_ONCE:
            found[one.words] = None
    return list(found)


@pytest.mark.parametrize("words", quick(), ids=" ".join)
def test_a_quick_command_runs_in_an_empty_home(words: tuple[str, ...], tmp_path: Path):
    assert answer(tmp_path / "home", *words)


def test_make_has_every_target_of_a_page():
    text = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    targets = {line.split(":")[0] for line in text.splitlines() if ": " in line}
    assert makes() <= targets


def test_every_recipe_of_make_train_is_there():
    for path in (REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")):
        for name in set(_recipes_of_make(path.read_text(encoding="utf-8"))):
            assert find_recipe(name).is_file(), f"{path.name}: make train RECIPE={name}"


def _recipes_of_make(text: str) -> list[str]:
    return re.findall(r"make train RECIPE=([a-z0-9/-]+)", text)
