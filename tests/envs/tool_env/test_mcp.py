"""Tools of real MCP servers: a program that is started, and one that runs already."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_core.data.read.row_images import open_image
from rl_core.envs import make
from rl_core.errors import EnvError
from rl_core.rollout.chat.observed import parts_of

pytest.importorskip("mcp")

SERVER = str(Path(__file__).with_name("calculator_server.py"))
ROW = {"reward_spec": {"ground_truth": "42"}}


def env_of(**mcp: Any) -> Any:
    return make("calculator", {"tools": [{"mcp": mcp}], "tool_timeout_s": 60, "max_turns": 30}, ROW)


def called(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def said(turn: Any) -> list[str]:
    return [message["content"] for message in turn["observations"]]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, SERVER, str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.terminate()
        process.wait(30)


def test_tools_of_a_program_are_offered_and_called():
    env = env_of(command=[sys.executable, SERVER])
    try:
        assert [tool["function"]["name"] for tool in env.tools] == [
            "multiply",
            "hang",
            "draw",
            "sing",
            "end",
        ]
        parameters = env.tools[0]["function"]["parameters"]
        assert parameters["properties"] == {"a": {"type": "integer"}, "b": {"type": "integer"}}
        other = env_of(command=[sys.executable, SERVER])
        assert said(other.step(called("multiply", a=2, b=3))) == ["6"]
        other.close()
        answers = said(env.step(called("multiply", a=6, b=7) + called("multiply", a="x")))
        assert answers[0] == "42"
        assert answers[1].startswith("error: ")
        assert env.get_metrics()["tool_errors"] == 1
    finally:
        env.close()


def test_a_picture_is_an_observation_and_sound_fails_the_row(url: str):
    env = env_of(url=url)
    try:
        (message,) = env.step(called("draw", points=5))["observations"]
        (_, text), (kind, picture) = parts_of(message)
        assert (text, kind, open_image(picture).size) == ("a square", "image", (5, 5))
        with pytest.raises(EnvError, match=r"the tool sing answers with audio; models read texts"):
            env.step(called("sing"))
    finally:
        env.close()


def test_a_program_that_ends_fails_the_row_and_is_started_again():
    env = env_of(command=[sys.executable, SERVER])
    try:
        with pytest.raises(EnvError, match="the server ends during the call of end"):
            env.step(called("end"))
        assert said(env.step(called("multiply", a=6, b=7))) == ["42"]
    finally:
        env.close()


def test_tools_of_an_address_are_offered_and_called(url: str):
    env = make("calculator", {"tools": [{"mcp": {"url": url}, "only": ["multiply"]}]}, ROW)
    try:
        assert [tool["function"]["name"] for tool in env.tools] == ["multiply"]
        assert said(env.step(called("multiply", a=6, b=7))) == ["42"]
        assert said(env.step(called("hang")))[0].startswith("error: there is no tool 'hang'")
    finally:
        env.close()


def test_a_tool_that_hangs_is_an_observation(url: str):
    env = make("calculator", {"tools": [{"mcp": {"url": url}}], "tool_timeout_s": 0.3}, ROW)
    try:
        assert said(env.step(called("hang"))) == ["error: took longer than 0.3 s"]
        assert env.get_metrics()["tool_timeouts"] == 1
    finally:
        env.close()


@pytest.mark.parametrize(
    ("mcp", "message"),
    [
        ({"command": ["no-such-program"]}, "mcp no-such-program: cannot be used: FileNotFound"),
        (
            {"command": [sys.executable, "-c", "import sys; sys.exit('no key')"]},
            "cannot be used: .*it said: no key",
        ),
        ({"command": ["sleep", "60"], "start_timeout_s": 0.5}, "lists no tools within 0.5 s"),
        ({"url": "http://127.0.0.1:9/mcp"}, "cannot be used"),
        (
            {"url": "http://127.0.0.1:9/mcp", "token_from": "NO_SUCH_VARIABLE"},
            "token_from: the environment has no variable NO_SUCH_VARIABLE",
        ),
    ],
)
def test_a_server_that_is_not_there_is_named(mcp: dict[str, Any], message: str):
    with pytest.raises(EnvError, match=message):
        env_of(**mcp)


def test_a_tool_that_the_server_lacks_is_named(url: str):
    options = {"tools": [{"mcp": {"url": url}, "only": ["divide"]}]}
    with pytest.raises(
        EnvError, match=r"there is no tool 'divide' \(known: multiply, hang, draw, sing, end\)"
    ):
        make("calculator", options, ROW)
