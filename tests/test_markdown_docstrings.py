"""The docs' conversion of Markdown docstrings to reStructuredText."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def conversion(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    sphinx = ModuleType("sphinx.application")
    sphinx.Sphinx = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sphinx", ModuleType("sphinx"))
    monkeypatch.setitem(sys.modules, "sphinx.application", sphinx)
    spec = importlib.util.spec_from_file_location(
        "markdown_docstrings", ROOT / "docs" / "markdown_docstrings.py"
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("docstring", "converted"),
    [
        ("Return `x`s of *all*.", ["", "Return \\ ``x``\\ s of \\*all\\*.", ""]),
        ("Call `f(a,\nb)`.", ["", "Call \\ ``f(a, b)``\\ .", ""]),
        ("One.\nArgs: a: b_c.", ["", "One.", "", "Args: a: b\\_c.", ""]),
        ("Args:\n    a: one\n        two", ["", "Args:", "", "* ``a``: one two", ""]),
        ("* one\n  two\n* three", ["", "* one two", "", "* three", ""]),
        ("| a | b |\n|---|---|", ["::", "", "    | a | b |", "    |---|---|", ""]),
        ("Code:\n\n    f(x)", ["", "Code:", "", "::", "", "        f(x)", ""]),
    ],
)
def test_markdown_becomes_restructured_text(
    conversion: ModuleType, docstring: str, converted: list[str]
):
    assert conversion.to_rst(docstring.splitlines()) == converted
