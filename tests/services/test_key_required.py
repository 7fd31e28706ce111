"""Servers answer those who know their key; each kind of server has its own."""

import stat
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from rl_core.errors import StorageError
from rl_core.runtime.home_keys import key_of
from rl_core.services.key_required import KeyRequired
from rl_core.services.login_page import LOGIN_PATH, WithLoginPage, login_address

KEY = "a-key"


@pytest.fixture
def client() -> TestClient:
    async def answer(_: object) -> PlainTextResponse:
        return PlainTextResponse("reached")

    app = Starlette(routes=[Route("/", answer), Route("/health", answer)])
    return TestClient(KeyRequired(app, KEY, "demo"))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"bearer {KEY}"}, 200),
        ({"Authorization": "Bearer another"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Cookie": "rl-train-demo=another"}, 401),
        ({"Cookie": f"rl-train-rewards={KEY}"}, 401),
        ({"Cookie": "\xff;;=="}, 401),
    ],
)
def test_a_request_without_the_key_is_refused(
    client: TestClient, headers: dict[str, str], status: int
) -> None:
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    assert client.get("/", headers=sent).status_code == status
    assert client.get("/health", headers=sent).status_code == 200


def test_a_browser_logs_in_once(client: TestClient) -> None:
    address = login_address("http://127.0.0.1:1/", KEY)
    assert address == f"http://127.0.0.1:1{LOGIN_PATH}#{KEY}"
    page = client.get(LOGIN_PATH)
    assert page.status_code == 200 and KEY not in page.text
    for wrong in ("another", "x" * 5000):
        assert client.post(LOGIN_PATH, content=wrong).status_code == 401
        assert client.get("/").status_code == 401
    entered = client.post(LOGIN_PATH, content=KEY)
    assert entered.status_code == 204
    kept = entered.headers["set-cookie"]
    assert "HttpOnly" in kept and "SameSite=Lax" in kept
    assert client.get("/").text == "reached"


def test_prefects_ui_reads_what_the_login_page_keeps() -> None:
    import prefect

    async def app(*_: object) -> None:
        raise AssertionError("the page is not the app's")

    page = TestClient(WithLoginPage(app)).get(LOGIN_PATH).text
    assert 'localStorage.setItem("prefect-password", btoa(key))' in page
    scripts = (Path(prefect.__file__).parent / "server" / "ui" / "assets").glob("*.js")
    assert any(
        "localStorage.setItem(`prefect-password`,btoa(" in one.read_text() for one in scripts
    )


def test_a_home_has_a_key_for_each_kind_of_server_from_one_file(tmp_path: Path) -> None:
    root = tmp_path / "home"
    keys = {server: key_of(root, server) for server in ("prefect", "rewards", "demo")}
    assert len({*keys.values()}) == 3
    assert keys["demo"] == key_of(root, "demo") != key_of(tmp_path / "other", "demo")
    assert [path.name for path in root.iterdir()] == ["secret"]
    assert stat.S_IMODE((root / "secret").stat().st_mode) == 0o600


def test_a_secret_that_is_cut_short_gives_no_keys(tmp_path: Path) -> None:
    key_of(tmp_path, "prefect")
    whole = (tmp_path / "secret").read_text()
    for cut in (whole[:10], "", whole[1:]):
        (tmp_path / "secret").write_text(cut)
        with pytest.raises(StorageError, match=f"it holds {len(cut)} characters"):
            key_of(tmp_path, "prefect")
