"""Which requests a server of this machine answers when a browser may have sent them."""

import asyncio
from typing import Any

import pytest

from rl_core.services.own_pages import ANY_HOST, LOCAL_HOSTS, OwnPagesOnly

HERE = "127.0.0.1:4200"


def answered(headers: dict[str, str], hosts: tuple[str, ...] = LOCAL_HOSTS, kind: str = "http"):
    """Send a request; return what the client gets."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "reached"})

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nothing is read of a refused request")

    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": kind, "headers": pairs}
    asyncio.run(OwnPagesOnly(app, hosts)(scope, receive, send))
    return sent


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": HERE},
        {"Host": "localhost:4200"},
        {"Host": "[::1]:4200"},
        {"Host": HERE, "Origin": f"http://{HERE}"},
        {"Host": HERE, "Origin": "http://localhost:4200"},
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_programs_and_own_pages_are_answered(headers: dict[str, str], kind: str):
    assert answered(headers, kind=kind) == [{"type": "reached"}]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:4200"},
        {"Host": HERE, "Origin": "http://evil.example"},
        {"Host": HERE, "Origin": "http://127.0.0.1.evil.example"},
        {"Host": HERE, "Origin": "null"},
        {"Host": "evil.example", "Origin": "http://evil.example"},
    ],
)
def test_other_pages_are_refused(headers: dict[str, str]):
    start, body = answered(headers)
    assert start["status"] == 403 and b"RL_TRAIN_ALLOWED_HOSTS" in body["body"]
    (closed,) = answered(headers, kind="websocket")
    assert closed["type"] == "websocket.close"


def test_a_server_for_others_takes_any_name_and_its_own_pages_alone():
    any_host = (*LOCAL_HOSTS, ANY_HOST)
    named = {"Host": "train.example"}
    assert answered(named, any_host) == [{"type": "reached"}]
    assert answered(named | {"Origin": "https://train.example"}, any_host) == [{"type": "reached"}]
    assert answered(named | {"Origin": "http://evil.example"}, any_host)[0]["status"] == 403


def test_what_is_no_request_passes():
    assert answered({}, kind="lifespan") == [{"type": "reached"}]
