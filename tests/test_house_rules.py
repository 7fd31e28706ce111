"""The house rules a machine can check: docstrings, honest errors, short files, tested plug-ins, a
light command."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rl_core.algorithms import algorithms
from rl_core.algorithms.advantages import advantage_estimators
from rl_core.algorithms.losses import policy_losses
from rl_core.data.order.registry import data_sources
from rl_core.envs import environments, registered
from rl_core.rewards import reward_scorers

ROOT = Path(__file__).parents[1]
FOLDERS = ("schemas", "rl_core", "tasks", "flows", "examples")
SOURCES = sorted(path for name in FOLDERS for path in (ROOT / name).rglob("*.py"))
BENCHMARKS = sorted((ROOT / "benchmarks").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
MAX_LINES = 460
LONGER = {"rl_core/data_proto/proto.py": 600}
"""One class with every method that verl's has."""
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
ABSOLUTE = re.compile(r"""(?<![\w.])/(work|root|home)/\w""")
RIDDLE = re.compile(r"(What|Whether|How|Of|Where|Why|Which|Those|As)\s")
"""Beginnings of docstrings that only make sense next to the documented name."""
REGISTRY_HOST = re.compile(
    r"\b(?:pypi\.org|pythonhosted\.org|huggingface\.co|docker\.io|ghcr\.io|quay\.io|download\.pytorch\.org"
    r"|anaconda\.(?:org|com)|npmjs\.(?:org|com)|proxy\.golang\.org|deb\.debian\.org)\b"
)
HEAVY = (
    "torch",
    "ray",
    "mlflow",
    "transformers",
    "prefect",
    "peft",
    "diffusers",
    "tensordict",
    "pandas",
    "matplotlib",
)


def swallowed_errors(source: str) -> list[int]:
    """Lines of handlers that catch everything and do nothing."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ExceptHandler):
            caught = (
                {name.id for name in ast.walk(node.type) if isinstance(name, ast.Name)}
                if node.type
                else set()
            )
            catches_all = node.type is None or caught & {"Exception", "BaseException"}
            idle = all(
                isinstance(step, ast.Pass | ast.Continue)
                or (isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant))
                for step in node.body
            )
            if catches_all and idle:
                lines.append(node.lineno)
    return lines


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every docstring, including those of fields."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for step in body if isinstance(body, list) else []:
            if (
                isinstance(step, ast.Expr)
                and isinstance(step.value, ast.Constant)
                and isinstance(step.value.value, str)
            ):
                yield step.lineno, step.value.value.strip()


def riddles(source: str) -> list[str]:
    """Return the docstrings that do not stand alone, as `line: beginning`."""
    return [
        f"{line}: {text.splitlines()[0]}" for line, text in docstrings(source) if RIDDLE.match(text)
    ]


def broken_rules(text: str, *, is_source: bool = True, max_lines: int = MAX_LINES) -> list[str]:
    """The rules a file breaks, as `line: rule`. Args: is_source: else it is a test, or a part of
    one."""
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
        found += [
            (number, "an `except` that catches everything and does nothing")
            for number in swallowed_errors(text)
        ]
    return [f"{number}: {what}" for number, what in sorted(found)]


def test_every_file_keeps_the_house_rules():
    found = []
    for path in SOURCES + TESTS:
        name = str(path.relative_to(ROOT))
        text, max_lines = path.read_text(encoding="utf-8"), LONGER.get(name, MAX_LINES)
        found += [
            f"{name}:{rule}"
            for rule in broken_rules(text, is_source=path in SOURCES, max_lines=max_lines)
        ]
    assert not found, "\n".join(["", *found])


def test_docstrings_stand_alone():
    found = []
    for path in SOURCES + BENCHMARKS:
        name = path.relative_to(ROOT).as_posix()
        found += [f"{name}:{riddle}" for riddle in riddles(path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(["", *found])


def tracked() -> list[str]:
    """Names of the repository's files."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return list(filter(None, listed.stdout.split("\0")))


def test_no_link_leads_out_of_the_repository():
    links = [ROOT / name for name in tracked() if (ROOT / name).is_symlink()]
    assert not [
        str(link)
        for link in links
        if link.readlink().is_absolute() or not link.resolve().is_relative_to(ROOT.resolve())
    ]


def test_no_file_names_the_host_of_a_registry():
    found = []
    for name in tracked():
        path = ROOT / name
        if path != Path(__file__) and path.suffix not in (".png", ".ico", ".gz") and path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            found += [
                f"{name}:{number}: {line}"
                for number, line in enumerate(lines, 1)
                if REGISTRY_HOST.search(line)
            ]
    assert not found, "\n".join(["", *found])


def test_every_package_has_a_readme():
    packages = {path.parent for path in SOURCES if path.name == "__init__.py"}
    assert packages
    assert not [
        str(folder.relative_to(ROOT)) for folder in packages if not (folder / "README.md").is_file()
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('"""What it does."""', ["1: What it does."]),
        ('x = 1\n"""Whether it is on."""', ["2: Whether it is on."]),
        ('class A:\n    b: int\n    """How many."""', ["3: How many."]),
        ('x = 1\n"""Of both sides."""', ["2: Of both sides."]),
        ('"""However: a value."""', []),
        ('def f():\n    """Return what is left."""', []),
    ],
)
def test_a_docstring_that_needs_its_name_is_found(text: str, found: list[str]):
    assert riddles(text) == found


@pytest.mark.parametrize(
    "host",
    ["py" + "pi.org/simple", "https://hugging" + "face.co/docs", "registry-1.docker" + ".io"],
)
def test_the_host_of_a_registry_is_found(host: str):
    assert REGISTRY_HOST.search(host)


def test_every_plugin_has_a_docstring_and_a_test_that_names_it():
    tests = [path for path in TESTS if path.name.startswith("test_") and path != Path(__file__)]
    tested = "\n".join(path.read_text(encoding="utf-8") for path in tests)
    found = []
    for registry in (
        *(algorithms, advantage_estimators, policy_losses),
        *(data_sources, environments, reward_scorers),
    ):
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
    tried = {
        canonicalize_name(one.name): one.specifier for one in map(Requirement, filter(None, lines))
    }
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
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
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
