"""Main program of the processes that play agents: `agent_main.py` answers orders until its input
ends.

It imports the agent once and forks for each episode, so that an episode that hangs, crashes or
changes a module harms no other. Orders and answers are lines of JSON. Only the standard library and
`openai` are imported here, since the interpreter may be another one than this project's.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import random
import selectors
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

DIE_WITH_PARENT = 1
"""Option of Linux's `prctl`: the signal that a process gets when its parent ends."""
PATIENCE_S = 24 * 3600.0
"""Timeout of the client; how long an episode may take is decided by who started it."""
ASKED_ONCE_S = 5.0
"""Timeout of the first request of all, before any episode."""

Play = Callable[[dict[str, Any], Any], Awaitable[object]]
"""An agent: an asynchronous function of a row and a client."""


def main() -> None:
    """Answer orders until standard input ends."""
    orders, answers = os.dup(0), os.dup(1)
    # What an agent prints must not end up among the answers.
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    lines = _lines(orders)
    setup = json.loads(next(lines))
    sys.path[:0] = [path for path in setup["path"] if path not in sys.path]
    try:
        play = _load(setup["agent"], setup.get("settings"))
        episodes = _Episodes(play, setup["agent"], orders, answers)
    except BaseException as error:
        _say(answers, {"broken": _told(error, setup["agent"])})
        return
    # What is shared with the episodes' processes stays shared.
    gc.freeze()
    _say(answers, {"ready": True})
    episodes.run()


class _Episodes:
    """The processes of the running episodes, by the pipe on which each tells its result."""

    def __init__(self, play: Play, agent: str, orders: int, answers: int) -> None:
        self.play, self.agent, self.orders, self.answers = play, agent, orders, answers
        self.client = _client("http://127.0.0.1/v1", "none", PATIENCE_S)
        """Copied for each episode, which costs less than another one; it has no connection yet."""
        self.libc = ctypes.CDLL(None)
        self.selector = selectors.DefaultSelector()
        self.children: dict[int, tuple[int, int]] = {}
        """Process and episode by pipe."""
        self.said: dict[int, bytes] = {}
        self.left = b""

    def run(self) -> None:
        """Start, collect and end episodes until the input ends."""
        self.selector.register(self.orders, selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fd != self.orders:
                    self.hear(key.fd)
                    continue
                data = os.read(self.orders, 1 << 16)
                if not data:
                    for pid, _ in self.children.values():
                        _kill(pid)
                    return
                *lines, self.left = (self.left + data).split(b"\n")
                for line in lines:
                    self.obey(json.loads(line))

    def obey(self, order: dict[str, Any]) -> None:
        """Start or end an episode."""
        if "kill" not in order:
            self.start(order)
            return
        for pid, number in self.children.values():
            if number == order["kill"]:
                _kill(pid)

    def start(self, order: dict[str, Any]) -> None:
        """Fork a process that plays an episode."""
        reading, writing = os.pipe()
        starter = os.getpid()
        pid = os.fork()
        if not pid:
            self.be_child(order, writing, starter)
        os.close(writing)
        self.selector.register(reading, selectors.EVENT_READ)
        self.children[reading], self.said[reading] = (pid, order["id"]), b""

    def be_child(self, order: dict[str, Any], writing: int, starter: int) -> NoReturn:
        """Play, tell the result and end."""
        os.setsid()
        if sys.platform == "linux":
            self.libc.prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != starter:
            os._exit(0)  # it ended before this process asked to end with it
        for held in (self.orders, self.answers, *self.children):
            os.close(held)
        try:
            result = _played(self.play, self.client, order)
        except BaseException as error:
            result = {"error": _told(error, self.agent)}
        try:
            _say(writing, result)
        except (TypeError, ValueError) as error:
            _say(writing, {"error": f"{self.agent} returned what is no JSON: {error}"})
        finally:
            os._exit(0)

    def hear(self, pipe: int) -> None:
        """Read a part of a result, or find that the process ended."""
        data = os.read(pipe, 1 << 16)
        self.said[pipe] += data
        if data:
            return
        self.selector.unregister(pipe)
        os.close(pipe)
        pid, number = self.children.pop(pipe)
        said = self.said.pop(pipe)
        # What the agent started itself ends with it.
        _kill(pid)
        status = os.waitpid(pid, 0)[1]
        if said.endswith(b"\n"):
            result = json.loads(said)
        elif os.WIFSIGNALED(status):
            result = {"died": f"signal {os.WTERMSIG(status)}"}
        else:
            result = {"died": f"exit code {os.WEXITSTATUS(status)}"}
        _say(self.answers, {"id": number, **result})


def _played(play: Play, client: Any, order: dict[str, Any]) -> dict[str, object]:
    import asyncio

    os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"] = order["url"], order["key"]
    random.seed(order["seed"])

    async def played() -> object:
        own = client.with_options(base_url=order["url"], api_key=order["key"])
        async with own:
            return await play(order["row"], own)

    return _read(asyncio.run(played()))


def _read(result: Any) -> dict[str, object]:
    """Return the result of an agent in a form that JSON has."""
    if hasattr(result, "item") and not hasattr(result, "__len__"):
        result = result.item()
    if isinstance(result, (int, float)):
        return {"reward": float(result)}
    if isinstance(result, dict) and "reward" in result:
        metrics = {str(k): float(v) for k, v in (result.get("metrics") or {}).items()}
        return _read(result["reward"]) | {"metrics": metrics}
    if isinstance(result, dict) and result and _are_numbers(result.values()):
        return {"seats": {str(seat): float(one) for seat, one in result.items()}}
    if isinstance(result, (list, tuple)) and result:
        if _are_numbers(result):
            return {"rewards": [float(one) for one in result]}
        messages: list[object] = []
        for one in result:
            if hasattr(one, "model_dump"):
                messages.append(one.model_dump(exclude_none=True))
            else:
                messages.append(one)
        if all(isinstance(one, dict) and isinstance(one.get("role"), str) for one in messages):
            return {"messages": messages}
    shown = repr(result)[:80]
    return {
        "error": f"it returned {shown}; a number is right, a list of numbers or of messages, "
        'a number for each seat, or {"reward": …, "metrics": {…}}'
    }


def _are_numbers(values: Iterable[object]) -> bool:
    return all(isinstance(one, (int, float)) for one in values)


def _load(agent: str, settings: object) -> Play:
    importlib.import_module("openai")  # without it no episode can be played
    module, _, name = agent.partition(":")
    play = getattr(importlib.import_module(module), name)
    if settings is not None:
        play = play(settings)
    # It saves each episode time, and no episode needs it.
    with contextlib.suppress(Exception):
        _ask_once()
    return play


def _ask_once() -> None:
    """Ask a server of this function's own for a reply, since the client imports its parts and
    builds its models when they are first used: 20 ms in every episode's process otherwise."""
    import asyncio

    # With every field that the endpoint's answers have: the client builds a model for each.
    reply = {"role": "assistant", "content": "", "refusal": None}
    choice = {"index": 0, "finish_reason": "stop", "message": reply, "logprobs": None}
    said = {
        **{"id": "", "object": "chat.completion", "created": 0, "model": ""},
        "choices": [choice],
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }
    body = json.dumps(said).encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        writer.write(head.encode() + b"\r\nconnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with _client(f"http://127.0.0.1:{port}/v1", "none", ASKED_ONCE_S) as client:
                await client.chat.completions.create(
                    model="none", messages=[{"role": "user", "content": ""}]
                )

    asyncio.run(ask())


def _client(url: str, key: str, timeout_s: float) -> Any:
    import openai

    # A proxy or a certificate is of no use on this machine.
    http = openai.DefaultAsyncHttpxClient(trust_env=False, verify=False)
    return openai.AsyncOpenAI(base_url=url, api_key=key, timeout=timeout_s, http_client=http)


def _told(error: BaseException, agent: str) -> str:
    """Return an error with the place in the agent's own file."""
    frames = traceback.extract_tb(error.__traceback__)
    spec = sys.modules.get(agent.partition(":")[0])
    own = getattr(spec, "__file__", None)
    inside = [one for one in frames if own and os.path.realpath(one.filename) == own]
    inside = inside or [
        one
        for one in frames
        if one.filename != __file__
        and "packages" not in one.filename
        and one.filename[0] != "<"
        and not one.filename.startswith(os.path.dirname(os.__file__))
    ]
    place = f"{inside[-1].filename}:{inside[-1].lineno}: " if inside else ""
    return f"{place}{type(error).__name__}: {error}"


def _say(pipe: int, message: Mapping[str, object]) -> None:
    data = (json.dumps(message) + "\n").encode()
    while data:
        data = data[os.write(pipe, data) :]


def _kill(pid: int) -> None:
    for end in (os.killpg, os.kill):
        try:
            end(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _lines(pipe: int) -> Iterator[bytes]:
    """Yield the first line of a pipe, byte by byte, so that the rest stays in it."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(pipe, 1)
        if not byte:
            raise SystemExit
        line += byte
    yield line


if __name__ == "__main__":
    main()
