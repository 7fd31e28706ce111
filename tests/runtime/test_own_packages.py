"""Our packages are found before anything else of their name, wherever Python is told to look
first."""

import subprocess
import sys
from pathlib import Path

import pytest

import rl_core
from rl_core.runtime import own_packages
from rl_core.runtime.own_packages import (
    FOLDERS,
    OWN,
    hidden_module,
    search_beside,
    search_users_folders_last,
)

ROOT = Path(__file__).resolve().parents[2]


def test_our_packages_come_before_those_of_a_folder_that_is_searched_first(tmp_path: Path):
    for name in OWN - {"rl_core"}:
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not ours')")
    look = (
        "import sys; sys.path.insert(0, sys.argv[2]); import rl_core; sys.path.insert(0, "
        "sys.argv[1]); from importlib.util import find_spec; import schemas.receipts, flows.cli, "
        "skyrl_gym; specs = [find_spec(name) for name in sys.argv[3:]]; print([spec.origin or "
        "list(spec.submodule_search_locations) for spec in specs])"
    )
    done = subprocess.run(
        [sys.executable, "-c", look, str(tmp_path), str(ROOT), *OWN],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stdout


def test_every_package_of_ours_is_among_them():
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "benchmarks"}
    assert packages <= OWN
    assert Path(rl_core.__file__).is_relative_to(own_packages._ROOT)


def test_what_ray_puts_first_is_searched_last(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    # Not what an earlier test's Ray put first.
    usual = [folder for folder in sys.path if "lib" in folder and "ray" not in Path(folder).parts]
    monkeypatch.setenv("PYTHONPATH", "/wanted")
    monkeypatch.delenv(FOLDERS, raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/ray/workers", "/wanted", *usual])
    search_users_folders_last()
    assert sys.path == ["/wanted", *usual, str(tmp_path), "/ray/workers"]


def test_only_a_file_that_something_else_hides_is_hidden(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "json.py").write_text("")
    (tmp_path / "math").mkdir()
    (tmp_path / "math" / "__init__.py").write_text("")
    (tmp_path / "users_own_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    __import__("users_own_module")
    hidden = hidden_module("json.decoder")
    assert (
        hidden is not None
        and hidden[0] == tmp_path / "json.py"
        and hidden[1].endswith("json/__init__.py")
    )
    assert hidden_module("math") is not None
    assert hidden_module("users_own_module") is None
    assert hidden_module("email") is None
    assert hidden_module("never_imported") is None


def test_the_folder_of_a_recipe_is_searched_by_its_run_after_everything_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv(FOLDERS, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    search_beside(tmp_path / "mine.yaml")
    search_beside(tmp_path / "other.yaml")
    assert sys.path.count(str(tmp_path)) == 1 and sys.path[-1] == str(tmp_path)
    sys.path.remove(str(tmp_path))
    search_users_folders_last()  # as a worker does
    assert sys.path[-1] == str(tmp_path)
