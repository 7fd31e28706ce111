"""`make structure` on a small made-up tree, whose figures can be counted by eye."""

from pathlib import Path

import pytest

from benchmarks.structure import cycles, graph, package_of, read, report

FILES = {
    "rl_core/__init__.py": "",
    "rl_core/loose.py": "from typing import Any\n\nx: Any = [i for i in range(3)]  # three\n",
    "rl_core/left/a.py": "from rl_core.left import b\n" + "#" * 101 + "\n",
    "rl_core/left/b.py": "from .a import f\ny = 1 if f else 2\n",
    "rl_core/left/c.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from rl_core.left import a\n",  # noqa: E501
    "rl_core/right/d.py": "def f():\n    from rl_core.right.e import g\n",
    "rl_core/right/e.py": "import rl_core.right.d\n",
    "tasks/one.py": "import os\n",
}
PACKAGES = ("rl_core", "tasks")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_figures_are_those_of_the_files(tree: Path):
    one = {module.name: module.figures for module in read(tree, PACKAGES)}
    loose, a, b = one["rl_core.loose"], one["rl_core.left.a"], one["rl_core.left.b"]
    assert (loose.lines, loose.anys, loose.comments, loose.comprehensions, loose.wide) == (
        3,
        1,
        1,
        1,
        0,
    )
    assert (a.lines, a.wide, b.ternaries) == (2, 1, 1)


def test_cycles_are_found_at_module_level_and_inside_functions(tree: Path):
    modules = read(tree, PACKAGES)
    at_module_level = [["rl_core.left.a", "rl_core.left.b"]]
    assert cycles(graph(modules, late=False)) == at_module_level
    assert cycles(graph(modules, late=True)) == [
        *at_module_level,
        ["rl_core.right.d", "rl_core.right.e"],
    ]


def test_a_file_counts_for_its_package():
    assert package_of(Path("rl_core/data/read/hub.py")) == "rl_core/data"
    assert package_of(Path("rl_core/errors.py")) == "rl_core"
    assert package_of(Path("flows/reference/page.py")) == "flows"


def test_report_names_the_largest_folder_and_loose_modules(tree: Path):
    lines = report(tree, PACKAGES).splitlines()
    assert "largest folder rl_core/left with 3 files; modules loose in rl_core 1" in lines
    assert "  2: rl_core.left.a, rl_core.left.b" in lines
    assert lines[1].split()[:3] == ["all", "8", "14"]
