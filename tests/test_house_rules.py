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


def broken_rules(text: str, *, is_source: bool = True, max_lines: int = MAX_LINES) -> list[str]:
    """The rules a file breaks, as `line: rule`. Args: is_source: else it is a test, or a part of one."""
    lines = text.splitlines()
    found = [(max_lines + 1, f"longer than {max_lines} lines")] if len(lines) > max_lines else []
    for number, line in enumerate(lines, start=1):
        if UNFINISHED.search(line):
            found.append((number, "unfinished work is marked"))
        if ABSOLUTE.search(line):
            found.append((number, "a path of one machine"))
    if is_source:
        if text.strip() and not ast.get_docstring(ast.parse(text)):
            found.append((1, "the module has no docstring"))
        found += [(number, "an `except` that catches everything and does nothing") for number in swallowed_errors(text)]
    return [f"{number}: {what}" for number, what in sorted(found)]


def test_every_file_keeps_the_house_rules():
    found = []
    for path in SOURCES + TESTS:
        name = str(path.relative_to(ROOT))
        text, max_lines = path.read_text(encoding="utf-8"), LONGER.get(name, MAX_LINES)
        found += [f"{name}:{rule}" for rule in broken_rules(text, is_source=path in SOURCES, max_lines=max_lines)]
    assert not found, "\n".join(["", *found])


def test_every_plugin_has_a_docstring_and_a_test_that_names_it():
    tests = [path for path in TESTS if path.name.startswith("test_") and path != Path(__file__)]
    tested = "\n".join(path.read_text(encoding="utf-8") for path in tests)
    found = []
    for registry in (algorithms, advantage_estimators, policy_losses, environments, reward_scorers):
        for name in registry.names():
            # `__dict__`, because `__doc__` would also find the docstring of a base class.
            if not inspect.cleandoc(registry.get(name).__dict__.get("__doc__") or ""):
                found.append(f"{registry.kind} {name}: no docstring")
            if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", tested):
                found.append(f"{registry.kind} {name}: no test names it")
    assert not found, "\n".join(["", *found])


def test_every_dependency_is_bounded_by_what_was_tried():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [entry for entries in project["optional-dependencies"].values() for entry in entries]
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tried = {canonicalize_name(one.name): one.specifier for one in map(Requirement, filter(None, lines))}
    found = []
    for wanted in map(Requirement, [*project["dependencies"], *extras]):
        if not {one.operator for one in wanted.specifier} & {"<", "=="}:
            found.append(f"{wanted}: no upper bound")
        for constraint in tried.get(canonicalize_name(wanted.name), []):
            if not wanted.specifier.contains(constraint.version):
                found.append(f"{wanted}: {constraint} of constraints.txt is outside")
    assert not found, "\n".join(["", *found])


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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("x = 1\n", ["1: the module has no docstring"]),
        ('"""Doc."""\n' * (MAX_LINES + 1), [f"{MAX_LINES + 1}: longer than {MAX_LINES} lines"]),
        (
            f'"""Doc."""\nA = "{"/wo" + "rk/main"}"  # {"TO" + "DO"}\n',
            ["2: a path of one machine", "2: unfinished work is marked"],
        ),
        (
            '"""Doc."""\ntry:\n    f()\nexcept Exception:\n    pass\n',
            ["4: an `except` that catches everything and does nothing"],
        ),
        ('"""Doc."""\n', []),
        ("", []),
    ],
)
def test_a_broken_rule_is_found(text: str, found: list[str]):
    assert broken_rules(text) == found


def test_tests_need_no_docstring():
    assert broken_rules("x = 1\n", is_source=False) == []
