"""What `rl-train doctor` says of things that are wrong, each made wrong for the occasion."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rl_core.doctor import machine, network, packages, sandbox
from rl_core.doctor.finding import Level
from rl_core.envs.tools.sandbox import Execution, Outcome
from rl_core.runtime.home import Home
from rl_core.runtime.process_record import start_time
from rl_core.services import service
from rl_core.services.all_services import Stack

ROOT = Path(__file__).parents[2]
GIB = 2**30


def test_a_package_that_does_not_fit_its_pin_is_named_with_both_versions_and_the_fix():
    found = list(
        packages.pins(
            ["numpy>=999", "no-such-package==1", "filelock>=1", "absent; sys_platform == 'plan9'"]
        )
    )
    assert [one.level for one in found] == [Level.PROBLEM, Level.PROBLEM, Level.GOOD]
    assert found[0].found.endswith("wanted >=999") and not found[0].found.startswith("missing")
    assert found[1].found == "missing, wanted ==1"
    assert f"pip install -c {packages.CONSTRAINTS} 'no-such-package==1'" in found[1].fix
    assert found[2].found.startswith("1 packages")


def test_an_installation_other_than_the_tried_one_is_a_warning():
    assert (
        packages.tested_together([f"filelock=={packages._installed('filelock')}  # why", ""]).level
        is Level.GOOD
    )
    other = packages.tested_together(["filelock==0.0.1", "not-installed==1"])
    assert other.level is Level.WARNING
    assert "filelock" in other.found and "not-installed" not in other.found


def test_an_old_python_is_a_problem():
    assert packages.python_finding(">=3.11").level is Level.GOOD
    assert packages.python_finding(">=4").level is Level.PROBLEM


@pytest.mark.parametrize(
    ("available", "allowed", "level"),
    [
        (8 * GIB, None, Level.GOOD),
        (3 * GIB, None, Level.WARNING),
        (8 * GIB, GIB, Level.PROBLEM),
        (GIB, 8 * GIB, Level.PROBLEM),
    ],
)
def test_memory_is_what_the_machine_and_the_limit_leave(
    available: int, allowed: int | None, level: Level
):
    assert machine.memory(available, allowed).level is level


def test_it_says_how_the_processor_multiplies():
    assert "float32" in machine.products(False).found
    assert "float32" not in machine.products(True).found


def test_writing_and_locking_are_tried_and_leave_nothing(tmp_path: Path):
    assert machine.writing("home", tmp_path).level is Level.GOOD
    assert machine.locking(tmp_path).level is Level.GOOD
    assert list(tmp_path.iterdir()) == []
    (blocked := tmp_path / "file").touch()
    refused = machine.writing("home", blocked / "folder")
    assert refused.level is Level.PROBLEM and "RL_TRAIN_HOME" in refused.fix
    assert machine.locking(blocked / "folder").level is Level.PROBLEM


def test_a_full_disk_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    usage = type(machine.shutil.disk_usage(tmp_path))
    for free, level in (
        (GIB, Level.PROBLEM),
        (5 * GIB, Level.WARNING),
        (40 * GIB, Level.WARNING),
        (90 * GIB, "good"),
    ):
        total = 1000 * GIB if free == 40 * GIB else 100 * GIB
        monkeypatch.setattr(
            machine.shutil, "disk_usage", lambda _, f=free, t=total: usage(t, t - f, f)
        )
        assert machine.disk("home", tmp_path / "not" / "yet").level == level, free


def test_a_proxy_that_swallows_local_requests_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert network.proxies().level is Level.GOOD
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:3128")
    assert network.proxies().level is Level.PROBLEM
    monkeypatch.setenv("no_proxy", "127.0.0.1,localhost")
    assert network.proxies().level is Level.GOOD


def test_a_taken_port_is_told_and_does_no_harm():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        assert "takes a free one" in network.port("prefect", number).found
    assert network.port("prefect", number).found == f"{number} is free"


def test_a_service_that_is_gone_or_silent_and_a_dead_server_are_problems(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(service, "PATIENCE_S", 0.1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
    me = psutil.Process()
    entry = {"pid": me.pid, "started": start_time(me), "url": url, "log": "the.log"}
    Stack(Home(tmp_path), print)._save({"prefect": entry, "mlflow": entry | {"started": 1.0}})
    found = {one.name: one for one in network.examine_network(Home(tmp_path))}
    assert found["prefect"].level is Level.PROBLEM and "does not answer" in found["prefect"].found
    assert found["mlflow"].level is Level.PROBLEM and "the.log" in found["mlflow"].fix
    assert found["PREFECT_API_URL"].level is Level.PROBLEM
    assert found["loopback"].level is Level.GOOD


def test_programs_are_held_here_and_an_escape_would_be_told():
    assert sandbox.examine_sandbox().level is Level.GOOD
    escaped = sandbox.verdict(Execution(Outcome.FINISHED, stdout=b"runs\nsees files\n"))
    assert escaped.level is Level.PROBLEM and "sees files" in escaped.found
    assert sandbox.verdict(Execution(Outcome.LOST)).level is Level.PROBLEM


def test_the_escape_does_escape_where_nothing_holds_it(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        program = sandbox.ESCAPE.format(file=str(tmp_path), address=listener.getsockname())
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
    assert done.stdout.splitlines() == ["runs", "sees files", "reaches the network"]


@pytest.mark.slow
@pytest.mark.parametrize(("proxy", "code"), [("", 0), ("http://192.0.2.1:3128", 1)])
def test_the_command_says_it_all_as_json_and_by_its_exit_code(
    tmp_path: Path, proxy: str, code: int
):
    names = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    environment |= {"RL_TRAIN_HOME": str(tmp_path / "home"), "http_proxy": proxy}
    command = [sys.executable, "-m", "flows.cli", "doctor", "--format", "json"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    found = json.loads(done.stdout)
    problems = [one for one in found if one["level"] == "problem"]
    assert {"python", "pins", "torch", "memory", "loopback", "model-written code"} <= {
        one["name"] for one in found
    }
    assert [one["name"] for one in problems] == (["proxies"] if proxy else [])
    assert all(one["fix"] for one in found if one["level"] != "good")
    assert done.returncode == code, done.stderr


def test_a_home_that_cannot_be_made_is_an_error_with_its_mend(tmp_path: Path):
    (tmp_path / "file").touch()
    environment = os.environ | {"RL_TRAIN_HOME": str(tmp_path / "file" / "home")}
    command = [sys.executable, "-m", "flows.cli", "doctor"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot make ") and "set RL_TRAIN_HOME" in done.stderr


def test_without_a_checkout_the_pins_are_those_that_pip_recorded(tmp_path: Path):
    python, dependencies = packages.wanted_packages(tmp_path / "pyproject.toml")
    assert python.startswith(">=3.")
    assert any(one.startswith("torch") for one in dependencies)


def test_the_project_file_of_somebody_else_is_not_ours(tmp_path: Path):
    theirs = tmp_path / "pyproject.toml"
    theirs.write_text('[project]\nname = "other"\nrequires-python = ">=9"\ndependencies = []\n')
    assert packages.wanted_packages(theirs) != (">=9", [])
