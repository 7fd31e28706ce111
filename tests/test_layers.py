"""Imports point one way and in no ring, and each heavy library has one home. Read from the source:
late ones count."""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("schemas", "rl_core", "tasks", "flows", "deployments", "examples")

LAYERS: tuple[tuple[str, ...], ...] = (
    ("rl_core.errors",),
    ("schemas", "rl_core.runtime"),
    ("rl_core.kernels",),
    ("rl_core.data_proto",),
    ("rl_core.ranks",),
    ("rl_core.sde",),
    ("rl_core.algorithms",),
    ("rl_core.envs",),
    ("rl_core.data", "rl_core.builtin.data", "rl_core.builtin.embedded"),
    ("rl_core.rewards",),
    ("rl_core.models",),
    ("rl_core.builtin.models",),
    ("rl_core.train",),
    ("rl_core.rollout", "rl_core.serving"),
    ("rl_core.distributed", "rl_core.tracking"),
    ("rl_core.parts",),
    ("rl_core.evaluation",),
    ("rl_core.watch",),
    ("rl_core.trainers",),
    ("rl_core.runs",),
    ("rl_core.reporting", "rl_core.services", "rl_core.doctor", "rl_core.demo"),
    ("tasks",),
    ("flows",),
    ("deployments",),
    ("examples",),
)
"""From the lowest to the highest. Those in one row may import each other."""

MODEL_CODE = (
    "rl_core.models",
    "rl_core.builtin",
    "rl_core.kernels",
    "rl_core.train",
    "rl_core.rollout",
)
HOMES: dict[str, tuple[str, ...]] = {
    "ray": ("rl_core.distributed",),
    "mlflow": ("rl_core.tracking",),
    "wandb": ("rl_core.tracking.also",),
    "prefect": ("flows", "tasks"),
    "transformers": (*MODEL_CODE, "rl_core.rewards"),
    "peft": MODEL_CODE,
    "diffusers": MODEL_CODE,
    "vllm": ("rl_core.rollout",),
    "rich": ("flows.console",),
}
DOOR = "rl_core.kernels"
"""A package that others import names from, and no files."""


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def layer_of(module: str) -> int | None:
    """Position in `LAYERS`, or None for a package's empty `__init__` and other people's modules."""
    return next(
        (i for i, row in enumerate(LAYERS) if any(within(module, package) for package in row)), None
    )


def project_modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports_of(source: str, module: str, *, is_package: bool = False) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported, wherever in the file; `from a import b` gives
    `a.b`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = (
                module.split(".")[: len(module.split(".")) - node.level + is_package]
                if node.level
                else []
            )
            base = ".".join([*parents, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What `source`, as module `module`, imports against the rules."""
    found = []
    own_layer = layer_of(module)
    for line, name in imports_of(source, module, is_package=is_package):
        homes = HOMES.get(name.split(".")[0])
        if homes and not any(within(module, home) for home in homes):
            found.append(f"{module}:{line} imports {name}; its home is {', '.join(homes)}")
        # A name of the door itself has one part more than the door; that of a file behind it is no
        # name of the door's.
        behind_door = within(name, DOOR) and name.removeprefix(DOOR + ".") not in DOOR_NAMES
        if behind_door and not within(module, DOOR):
            found.append(
                f"{module}:{line} imports {name}, which is none of the names in {DOOR}.__all__"
            )
        other_layer = layer_of(name)
        if own_layer is not None and other_layer is not None and other_layer > own_layer:
            found.append(f"{module}:{line} imports {name}, which lies above it")
    return found


def own_imports(
    source: str, module: str, modules: set[str], *, is_package: bool = False
) -> set[str]:
    """Those of `modules` that `source` imports: a module by its own name, or the one that holds an
    imported name."""
    found = set()
    for _, name in imports_of(source, module, is_package=is_package):
        found.add(name if name in modules else name.rpartition(".")[0])
    return (found & modules) - {module}


def ring_in(imports: Mapping[str, set[str]]) -> str | None:
    """A ring of modules that import each other, as `a -> b -> a`; None where there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        # Each node of the error is a predecessor of the next one, so the importers stand behind the
        # imported.
        return " -> ".join(reversed(error.args[1]))
    return None


def names_of(package: str) -> set[str]:
    """What a package's `__all__` says."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    said = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id == "__all__"
    ]
    return set(ast.literal_eval(said[0]))


DOOR_NAMES = names_of(DOOR)
MODULES = list(project_modules())


def test_imports_point_downwards_and_heavy_libraries_stay_home():
    found = []
    for module, path in MODULES:
        found += violations(
            path.read_text(encoding="utf-8"), module, is_package=path.name == "__init__.py"
        )
    assert not found, "\n".join(["", *found])


def test_no_modules_import_each_other_in_a_ring():
    names = {module for module, _ in MODULES}
    imports = {
        module: own_imports(
            path.read_text(encoding="utf-8"), module, names, is_package=path.name == "__init__.py"
        )
        for module, path in MODULES
    }
    ring = ring_in(imports)
    assert ring is None, f"{ring}: move what they share into a module below both"


def test_a_ring_is_named():
    sources = {
        "a": "from b import one",
        "b": "def f():\n    import c",
        "c": "from a import two",
        "d": "import a",
    }
    imports = {
        module: own_imports(source, module, set(sources)) for module, source in sources.items()
    }
    ring = ring_in(imports)
    assert ring in ("a -> b -> c -> a", "b -> c -> a -> b", "c -> a -> b -> c")


def test_every_module_has_a_layer():
    assert [
        module
        for module, path in MODULES
        if path.stat().st_size and module != "rl_core" and layer_of(module) is None
    ] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("rl_core.train.stacks.token_stack", "def f():\n    import ray"),
        ("rl_core.trainers.base", "from mlflow import MlflowClient"),
        ("rl_core.evaluation.runner", "import prefect.artifacts"),
        ("rl_core.data.order.prompt_dataset", "from transformers import AutoTokenizer"),
        ("rl_core.algorithms.grpo", "from rl_core.train.stacks.token_stack import TrainStack"),
        ("rl_core.algorithms.grpo", "from rl_core import trainers"),
        ("rl_core.algorithms.grpo", "from ..trainers import base"),
        ("schemas.recipe", "from rl_core.algorithms import algorithms"),
        ("tasks.evaluate", "import flows.rl_train"),
        ("flows.display", "from rich.console import Console"),
        ("rl_core.models.packing", "from rl_core.kernels import rms_norm"),
        ("rl_core.models.packing", f"from {DOOR}.rms_norm import RMSNorm"),
        ("rl_core.models.packing", f"import {DOOR}.rms_norm"),
    ],
)
def test_a_forbidden_import_is_found(module: str, source: str):
    assert len(violations(source, module)) == 1


def test_an_import_in_the_same_or_a_lower_layer_is_fine():
    source = (
        "import torch\nfrom rl_core.train import fsdp\nfrom rl_core.kernels import "
        "RMSNorm\nimport transformers"
    )
    assert violations(source, "rl_core.rollout.engine") == []
