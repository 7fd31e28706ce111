"""Programs in a container or on a server: the same verdicts as under bubblewrap, and what is said
where there is none."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_core.envs import make
from rl_core.envs.tools.places import container
from rl_core.envs.tools.places.sandbox_choice import ContainerSandbox, RemoteSandbox
from rl_core.envs.tools.python import PythonCodeExecutorToolGroup
from rl_core.errors import EnvError, MachineLacks
from tests.envs.fusion_server import FusionServer

FAKE = """#!{python}
# Notes how it is called, and runs what the container would.
import json, os, sys
arguments = sys.argv[1:]
with open({calls!r}, "a") as file: file.write(json.dumps(arguments) + "\\n")
if arguments[0] == "kill": sys.exit(0)
command = arguments[arguments.index("img:1") + 1:]
os.chdir({folder!r})
os.execv(sys.executable, [sys.executable, *command[1:]])
"""


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A `docker` that runs programs as ordinary processes. Yields: the file with its calls."""
    (tmp_path / "bin").mkdir()
    program, calls = tmp_path / "bin" / "docker", tmp_path / "calls"
    made = FAKE.format(python=sys.executable, calls=str(calls), folder=str(tmp_path))
    program.write_text(made)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    container.require.cache_clear()
    yield calls
    container.require.cache_clear()


@pytest.fixture
def fusion() -> Iterator[FusionServer]:
    server = FusionServer()
    yield server
    server.close()


def verdicts(sandbox: Any) -> list[str]:
    """How programs fare on two tests."""
    tests = [{"input": "3", "output": "6"}, {"input": "4", "output": "8"}]
    calls = [
        {
            "input": "3",
            "output": "6",
            "metadata": {"func_name": "double"},
            "testtype": "functional",
        }
    ]
    programs = {
        "right": ("print(2 * int(input()))", tests),
        "bare": ("def double(x: int): return 2 * x", tests),
        "called": ("class Solution:\n    def double(self, x): return 2 * x", calls),
        "wrong": ("print(6)", tests),
        "raises": ("raise ValueError('no')", tests),
        "hangs": ("import time; time.sleep(60)", tests),
    }
    told = []
    for name, (source, cases) in programs.items():
        given = {"sandbox": sandbox, "timeout_s": 1.5}
        env = make("lcb", given, {"reward_spec": {"ground_truth": cases}})
        out = env.step(f"```python\n{source}\n```")
        env.close()
        told.append(f"{name} {out['reward']:g} {out['metadata'].get('failure')}")  # type: ignore[index]
    return told


RIGHT = [
    "right 1 None",
    "bare 1 None",
    "called 1 None",
    "wrong 0 wrong answer",
    "raises 0 failed",
    "hangs 0 timeout",
]


def test_a_container_gives_the_verdicts_of_bubblewrap_and_is_locked(docker: Path) -> None:
    assert verdicts({"docker": "img:1"}) == RIGHT == verdicts("bubblewrap")
    runs = [json.loads(line) for line in docker.read_text().splitlines()]
    runs = [one for one in runs if one[0] == "run"]
    for said in ("--network none", "--read-only", "--cap-drop ALL", "--user 65534:65534"):
        assert all(said in " ".join(one[:40]) for one in runs)
    assert all("--pids-limit" in one for one in runs[1:])
    assert not any("--volume" in one or "--mount" in one for one in runs)


def test_a_container_that_does_not_start_is_no_verdict(docker: Path) -> None:
    given = {"reward_spec": {"ground_truth": [{"input": "", "output": "1"}]}}
    env = make("lcb", {"sandbox": {"docker": "img:1"}}, given)
    # The daemon ends.
    (docker.parent / "bin" / "docker").write_text("#!/bin/sh\necho no daemon >&2; exit 125\n")
    with pytest.raises(EnvError, match=r"no daemon"):
        env.step("```python\nprint(1)\n```")
    env.close()


def test_a_server_gives_the_verdicts_of_bubblewrap(fusion: FusionServer) -> None:
    assert verdicts({"remote": fusion.url}) == RIGHT
    assert {one["language"] for one in fusion.requests} == {"python"}
    # Expected outputs stay here.
    assert not any("ground_truth" in json.dumps(one) for one in fusion.requests)


@pytest.mark.slow
def test_the_tool_python_runs_on_a_server_and_a_server_that_fails_is_no_verdict(
    fusion: FusionServer,
) -> None:
    tool = PythonCodeExecutorToolGroup(5.0, RemoteSandbox(remote=fusion.url))
    assert tool.python("print(6 * 7)\nprint(input.__name__)") == "42\ninput\n"
    assert "ZeroDivisionError" in tool.python("1 / 0")
    fusion.broken = 1
    assert tool.python("print(1)") == "1\n"
    failures: list[dict[str, Any]] = [
        fusion.failure,
        {"status": "Failed", "run_result": None},
        {"status": "Failed", "run_result": {"status": "Error"}},
    ]
    for fusion.failure in failures:
        fusion.broken = 3
        with pytest.raises(EnvError, match=r"ran no program: 200: .*no pod"):
            tool.python("print(1)")
    tool.close()


def test_a_place_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineLacks, match=r"the server http://127\.0\.0\.1:9 ran no program"):
        PythonCodeExecutorToolGroup(5.0, RemoteSandbox(remote="http://127.0.0.1:9"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineLacks, match="no program podman on this machine"):
        PythonCodeExecutorToolGroup(5.0, ContainerSandbox(podman="img:2"))


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ("bubble", "Input should be 'bubblewrap', 'docker', 'podman' or 'unsafe', got 'bubble'"),
        ({"remote": "host:80"}, "remote"),
        ({"docker": "a", "podman": "b"}, "name one of docker and podman"),
    ],
)
def test_a_place_of_another_form_is_refused_in_a_sentence(choice: Any, said: str) -> None:
    with pytest.raises(EnvError, match=said) as told:
        make("lcb", {"sandbox": choice}, {"reward_spec": {"ground_truth": []}})
    assert len(str(told.value).splitlines()) == 1
