"""The house rules a machine can check: docstrings, honest errors, short files, tested plug-ins, a light command."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rl_core.algorithms import algorithms
from rl_core.algorithms.advantages import advantage_estimators
from rl_core.algorithms.losses import policy_losses
from rl_core.envs import environments, registered
from rl_core.rewards import reward_scorers

ROOT = Path(__file__).parents[1]
SOURCES = sorted(path for name in ("schemas", "rl_core", "tasks", "flows") for path in (ROOT / name).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_LINES = 400
LONGER = {"rl_core/data_proto/proto.py": 510}
"""One class with every method that verl's has."""
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
ABSOLUTE = re.compile(r"""(?<![\w.])/(work|root|home)/\w""")
HEAVY = ("torch", "ray", "mlflow", "transformers", "prefect", "peft", "diffusers", "tensordict", "pandas", "matplotlib")


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


def swallowed_errors(source: str) -> list[int]:
    """Lines of handlers that catch everything and do nothing."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            caught = {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)} if node.type else set()
            catches_all = node.type is None or caught & {"Exception", "BaseException"}
            idle = all(
                isinstance(step, ast.Pass | ast.Continue)
                or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
                for step in node.body
            )
            if catches_all and idle:
                lines.append(node.lineno)
    return lines


@pytest.mark.parametrize("path", SOURCES, ids=relative)
def test_source_file_keeps_the_house_rules(path: Path):
    text = path.read_text(encoding="utf-8")
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), "the module has no docstring"
    assert swallowed_errors(text) == [], "an `except` that catches everything and does nothing"


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=relative)
def test_file_is_short_finished_and_portable(path: Path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LONGER.get(relative(path), MAX_LINES)
    numbered = list(enumerate(lines, start=1))
    assert [number for number, line in numbered if UNFINISHED.search(line)] == [], "unfinished work is marked"
    assert [number for number, line in numbered if ABSOLUTE.search(line)] == [], "a path of one machine"


PLUGINS = [
    (registry.kind, name, registry.get(name))
    for registry in (algorithms, advantage_estimators, policy_losses, environments, reward_scorers)
    for name in registry.names()
]


@pytest.mark.parametrize(("kind", "name", "cls"), PLUGINS, ids=[f"{kind}-{name}" for kind, name, _ in PLUGINS])
def test_plugin_has_a_docstring_and_a_test_that_names_it(kind: str, name: str, cls: type):
    # `__dict__`, because `__doc__` would also find the docstring of a base class.
    assert inspect.cleandoc(cls.__dict__.get("__doc__") or ""), f"{kind} {name} has no docstring"
    word = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    tests = [path for path in TESTS if path.name.startswith("test_") and path != Path(__file__)]
    assert any(word.search(path.read_text(encoding="utf-8")) for path in tests), f"no test names {kind} {name}"


def test_every_dependency_is_bounded_by_what_was_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [entry for entries in project["optional-dependencies"].values() for entry in entries]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tried = {canonicalize_name(one.name): one.specifier for one in map(Requirement, filter(None, lines))}
    for wanted in map(Requirement, [*project["dependencies"], *extras]):
        operators = {one.operator for one in wanted.specifier}
        assert operators & {"<", "=="}, f"{wanted}: no upper bound"
        for constraint in tried.get(canonicalize_name(wanted.name), []):
            assert wanted.specifier.contains(constraint.version), (
                f"{wanted}: {constraint} of constraints.txt is outside"
            )


def test_there_are_plugins_to_check():
    assert algorithms.names()
    assert set(environments.names()) <= set(registered())
    assert environments.names()


def test_the_command_starts_without_heavy_libraries():
    code = f"import flows.cli, sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        ("except Exception:\n    pass", True),
        ("except:\n    ...", True),
        ("except (ValueError, Exception):\n    'why not'", True),
        ("except ValueError:\n    pass", False),
        ("except Exception as error:\n    raise KeyError from error", False),
    ],
)
def test_a_swallowed_error_is_found(handler: str, found: bool):
    assert bool(swallowed_errors(f"try:\n    f()\n{handler}\n")) is found
