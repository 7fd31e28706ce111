"""The table of promises against the code: what keeps a promise and what tests it are there."""

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from flows.reference.commands import commands_page
from flows.reference.promises import Document, Promise, seed_documents
from flows.reference.recipe import recipe_page

ROOT = Path(__file__).parents[2]
NUM_PROMISES = 217
DOCUMENTS = seed_documents()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.title)
def test_every_promise_is_kept_somewhere_and_tested(document: Document) -> None:
    assert [fault for one in document.promises for fault in faults(one)] == []


def test_no_promise_is_missing_or_there_twice() -> None:
    for document in DOCUMENTS:
        numbers = [number for one in document.promises for number in one.numbers]
        assert numbers == list(range(document.first, document.last + 1)), document.title
    assert [document.first for document in DOCUMENTS[1:]] == [
        document.last + 1 for document in DOCUMENTS[:-1]
    ]
    assert (DOCUMENTS[0].first, DOCUMENTS[-1].last) == (1, NUM_PROMISES)
    said = Counter(one.promise for document in DOCUMENTS for one in document.promises)
    assert [promise for promise, times in said.items() if times > 1] == []


@pytest.mark.parametrize(
    ("kept", "test", "fault"),
    [
        ("rl_core/nothing.py:X", "tests/test_layers.py::test_a_ring_is_named", "no such file"),
        ("rl_core/errors.py:X", "tests/test_layers.py::test_a_ring_is_named", "no X in it"),
        ("rl_core/errors.py:DataError.x", "tests/test_layers.py::test_a_ring_is_named", "no Data"),
        ("deployments/prep/mpo.yaml:x", "tests/test_layers.py::test_a_ring_is_named", "no x in it"),
        ("recipe nothing", "tests/test_layers.py::test_a_ring_is_named", "no such key"),
        ("rl-train fly", "tests/test_layers.py::test_a_ring_is_named", "no such command"),
        ("recipe seed", "tests/test_layers.py::test_x", "no test_x in it"),
        ("recipe seed", "rl_core/errors.py::DataError", "no test"),
    ],
)
def test_a_place_or_test_that_is_not_there_is_found(kept: str, test: str, fault: str) -> None:
    one = Promise.model_validate(
        {"numbers": 1, "promise": "x", "lines": 1, "kept": kept, "test": test}
    )
    (found,) = faults(one)
    assert fault in found


def test_the_packages_it_stands_on_are_required() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    names = {re.split(r"[^\w-]", one)[0] for one in required}
    (one,) = (one for document in DOCUMENTS for one in document.promises if 208 in one.numbers)
    promised = one.promise.partition(" - ")[2].rstrip(".").replace(" and ", ", ").split(", ")
    assert len(promised) == 13 and set(promised) <= names


def test_the_top_folders_are_there() -> None:
    (one,) = (one for document in DOCUMENTS for one in document.promises if 209 in one.numbers)
    promised = re.findall(r"`([^`]+)`", one.promise)
    assert len(promised) == 8 and all((ROOT / name).exists() for name in promised)


def faults(one: Promise) -> Iterator[str]:
    """Say what is wrong with an entry's places and tests."""
    for place in one.kept:
        if fault := fault_of_place(place):
            yield f"{one.numbers} {place}: {fault}"
    for test in one.test:
        path, _, name = test.partition("::")
        if not (path.startswith("tests/") and name.startswith("test_")):
            yield f"{one.numbers} {test}: no test"
        elif fault := fault_of_symbol(path, name):
            yield f"{one.numbers} {test}: {fault}"


def fault_of_place(place: str) -> str:
    """Return what is wrong with a place that keeps a promise, or an empty string."""
    if place.startswith("recipe "):
        key = place.removeprefix("recipe ")
        return "" if f"| `{key}` |" in page_of("recipe") else "no such key"
    if place.startswith("rl-train "):
        return "" if has_command(place) else "no such command"
    path, _, symbol = place.partition(":")
    return fault_of_symbol(path, symbol)


def fault_of_symbol(path: str, symbol: str) -> str:
    """Return what is wrong with a symbol of a file, or an empty string; no symbol is the whole
    file."""
    file = ROOT / path
    if not file.is_file():
        return "no such file"
    if not symbol:
        return ""
    known = names_in(file) if file.suffix == ".py" else keys_in(file)
    return "" if symbol in known else f"no {symbol} in it"


@cache
def names_in(file: Path) -> set[str]:
    """Names that a module defines, and `Class.name` for those of its classes."""
    module = ast.parse(file.read_text(encoding="utf-8"))
    return set(defined(module.body))


def defined(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from defined(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (prefix + target.id for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.ImportFrom):
            yield from (prefix + (alias.asname or alias.name) for alias in node.names)


@cache
def keys_in(file: Path) -> set[str]:
    """Keys at the top of a settings file."""
    return set(yaml.safe_load(file.read_text(encoding="utf-8")))


@cache
def page_of(kind: str) -> str:
    """Return the reference page of all recipe keys or all commands."""
    return recipe_page() if kind == "recipe" else commands_page()


def has_command(place: str) -> bool:
    """Say whether a command has all the options that a place names."""
    name, _, option = place.partition(" --")
    found = re.search(
        rf"^## `{name}(?: [A-Z]+)*`$(.*?)(?=^## |\Z)", page_of("commands"), re.DOTALL | re.MULTILINE
    )
    return found is not None and f"--{option}`" in (found[1] if option else "--`")
