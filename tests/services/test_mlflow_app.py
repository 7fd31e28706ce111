"""MLflow's server of `rl-train up` answers who knows the home's key: programs, and a browser that
was logged in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from mlflow.exceptions import MlflowException

from rl_core.runtime.home import Home
from rl_core.runtime.home_keys import MLFLOW_SERVER, key_of
from rl_core.runtime.process_record import stop_tree
from rl_core.services import catalogue
from rl_core.services.exposure import LOCALHOST
from rl_core.services.login_page import login_address
from rl_core.services.ports import free_port
from rl_core.tracking.database import ensure_database, tracking_client
from tests.e2e.browser import CHROMIUM, chromium

SEARCH = "/api/2.0/mlflow/experiments/search?max_results=1"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("mlflow") / "home")


@pytest.fixture(scope="module")
def url(home: Home) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        home.root.mkdir()
        ensure_database(home.mlflow_uri)
        service = catalogue.mlflow_server(home, LOCALHOST, free_port(LOCALHOST))
        record = service.start(catalogue.REPOSITORY, home.logs / "mlflow.log").wait()
    yield service.url
    assert record.process is not None, "it still ran"
    stop_tree(record.process)


@pytest.mark.slow
def test_programs_give_the_key(url: str, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    key = {"Authorization": f"Bearer {key_of(home.root, MLFLOW_SERVER)}"}
    assert httpx.get(url + SEARCH, headers=key).json()["experiments"]
    for path, headers, status in (
        ("/", {}, 401),
        (SEARCH, {}, 401),
        (SEARCH, {"Authorization": f"Bearer {key_of(home.root, 'prefect')}"}, 401),
        (SEARCH, key | {"Origin": "http://evil.example"}, 403),
        (SEARCH, key | {"Host": "evil.example"}, 403),
    ):
        assert httpx.get(url + path, headers=headers).status_code == status, (path, headers)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", key_of(home.root, MLFLOW_SERVER))
    made = tracking_client(url).create_experiment("mine")
    location = tracking_client(url).get_experiment(made).artifact_location
    assert location.startswith(home.mlflow_artifacts.as_uri())
    monkeypatch.delenv("MLFLOW_TRACKING_TOKEN")
    with pytest.raises(MlflowException, match="the key is missing or wrong"):
        tracking_client(url).get_experiment(made)


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: make test-browser installs it")
def test_a_browser_logs_in_by_the_address_of_rl_train_open(
    url: str, home: Home, tmp_path: Path
) -> None:
    link = tmp_path / "report.html"
    link.write_text(f"<a id=it href='{url}/'>the run</a>")
    with chromium(tmp_path / "profile") as browser:
        browser.open(url, "document.body.innerText.includes('rl-train open')")
        browser.open(
            login_address(url, key_of(home.root, MLFLOW_SERVER)),
            "document.body.innerText.includes('Experiments')",
        )
        assert "#" not in browser.value("location.href").rstrip("#/")
        browser.open(link.as_uri(), "document.getElementById('it')")
        browser.value("document.getElementById('it').click()")
        browser.wait_for("document.body.innerText.includes('Experiments')")
