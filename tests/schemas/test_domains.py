"""The table of domains: complete, true of the code, and the only place where domains differ."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rl_core.runtime.registry import import_target
from rl_core.trainers.base import Trainer
from schemas.domains import TRAITS, Domain
from schemas.recipe import Recipe

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "schemas" / "domains.py"


def switches(source: str) -> list[int]:
    """Lines that compare something with a domain, or have one as the key of a mapping."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.MatchValue):
            parts = [node]
        else:
            continue
        found += [part.lineno for part in parts if names_domain(part)]
    return found


def names_domain(node: ast.AST) -> bool:
    """Whether `Domain.X` is in an expression."""
    values = [one.value for one in ast.walk(node) if isinstance(one, ast.Attribute)]
    return any(isinstance(value, ast.Name) and value.id == "Domain" for value in values)


def test_every_domain_has_a_trainer_of_its_own():
    assert set(TRAITS) == set(Domain)
    trainers = [import_target(domain.traits.trainer) for domain in Domain]
    assert len(set(trainers)) == len(trainers)
    # None is another's child: what two have in common is a part that both are made of.
    assert all(trainer.__bases__ == (Trainer,) for trainer in trainers)


def test_a_block_that_a_domain_needs_is_one_of_the_recipe():
    blocks = [traits.block for traits in TRAITS.values() if traits.block is not None]
    assert len(set(blocks)) == len(blocks) > 0
    assert set(blocks) <= set(Recipe.model_fields)


def test_no_code_asks_which_domain_it_is():
    folders = ("schemas", "rl_core", "tasks", "flows", "examples")
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        if path != TABLE
        for line in switches(path.read_text(encoding="utf-8"))
    ]
    assert not found, "ask recipe.domain.traits instead:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("if recipe.domain is Domain.TEXT: pass", [1]),
        ("x = domain not in (Domain.PE, Domain.TEXT)", [1]),
        ("x = {Domain.TEXT: 1}[domain]", [1]),
        ("match domain:\n    case Domain.TEXT: pass", [2]),
        ("job = {'domain': Domain.DIFFUSION}", []),
        ("x = domain.traits.rows is SchemaName.PROMPT", []),
    ],
)
def test_a_switch_is_found(source: str, found: list[int]):
    assert switches(source) == found
