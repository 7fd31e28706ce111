"""The Prefect API that a local run starts by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prefect.context import refresh_global_settings_context

from flows import local_api
from rl_core.errors import ServiceError
from rl_core.services.catalogue import answers, credentials
from rl_core.services.exposure import LOCAL_API
from tests.e2e.prefect_api import wait_until

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def nothing_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder and an environment without a word about Prefect servers."""
    monkeypatch.chdir(tmp_path)
    for name in (*local_api.DECIDING, "PREFECT_API_AUTH_STRING", LOCAL_API):
        # Set first, so that it is absent again afterwards, whatever the test leaves there.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("RL_TRAIN_HOME", str(tmp_path))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "90")
    yield tmp_path
    monkeypatch.undo()
    # Settings that Prefect read meanwhile name a server that is gone; later tests have their own.
    refresh_global_settings_context()


@pytest.mark.slow
def test_it_answers_and_ends(nothing_chosen: Path):
    api = local_api.start_local_api()
    assert api is not None
    try:
        assert os.environ["PREFECT_API_URL"] == api.url
        api.process.kill()  # before it has answered once
        api.wait()
        assert httpx.get(f"{api.url}/health").json() is True
        query = f"{api.url}/flow_runs/filter"
        assert httpx.post(query, json={}).status_code == httpx.codes.UNAUTHORIZED
        assert httpx.post(query, json={}, headers=credentials()).json() == []
        for foreign in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
            refused = httpx.post(f"{api.url}/deployments/", json={}, headers=foreign)
            assert refused.status_code == httpx.codes.FORBIDDEN, refused.text
            assert "access-control-allow-origin" not in refused.headers
        killed = api.process
        killed.kill()
        wait_until(lambda: api.process is not killed and answers(f"{api.url}/health"), "a restart")
        assert httpx.post(query, json={}, headers=credentials()).json() == []
    finally:
        api.stop()
    assert not psutil.pid_exists(api.process.pid)
    with pytest.raises(ServiceError, match="the local Prefect API ended with code"):
        api.wait()


@pytest.mark.slow
def test_flows_find_it_where_prefect_was_imported_before(nothing_chosen: Path):
    """With the settings that Prefect read then, it would start a server of its own."""
    code = """
from prefect.settings import PREFECT_API_URL
before = PREFECT_API_URL.value()
from flows.local_api import start_local_api
api = start_local_api()
print(before, PREFECT_API_URL.value() == api.url)
api.stop()
"""
    found = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == ["None", "True"]


@pytest.mark.parametrize(
    "chosen",
    [
        "PREFECT_API_URL",
        "PREFECT_PROFILE",
        "prefect/profiles.toml",
        "prefect.toml",
        ".env",
        "pyproject.toml",
    ],
)
def test_what_the_user_chose_is_left_to_prefect(
    nothing_chosen: Path, monkeypatch: pytest.MonkeyPatch, chosen: str
):
    if chosen.startswith("PREFECT"):
        monkeypatch.setenv(chosen, "http://127.0.0.1:9/api")
    else:
        (nothing_chosen / chosen).parent.mkdir(exist_ok=True)
        (nothing_chosen / chosen).write_text("[tool.prefect.api]\n")
    assert local_api.start_local_api() is None
