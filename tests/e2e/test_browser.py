"""Both UIs and the report as a person sees them: graph, log, curves and samples of a real run are
there.

`make test-browser` installs Chromium and runs this. The pictures go to the folder that
`SCREENSHOTS` names, if any.
"""

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from rl_core.evaluation.runner import read_samples
from rl_core.rewards.samples import prompt_text
from rl_core.runtime.home_keys import MLFLOW_SERVER, key_of
from rl_core.services.exposure import LOCALHOST
from rl_core.services.login_page import login_address
from rl_core.services.ports import free_port
from tests.e2e.browser import CHROMIUM, Browser, chromium
from tests.e2e.conftest import REPOSITORY
from tests.e2e.outcomes import run_folder
from tests.e2e.prefect_api import wait_until
from tests.e2e.services import Services

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="needs Chromium: make test-browser installs it, as root, on Debian"
    ),
]
DEADLINE_S = 900


@dataclass(frozen=True)
class Shown:
    """A finished run, and where it is shown."""

    folder: Path
    prefect: str
    """The flow run's page."""
    mlflow: str
    """The MLflow run's page."""
    login: str
    """The address that logs a browser in to MLflow."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, tiny_recipe: Path) -> Iterator[Shown]:
    services, port = (
        Services(tmp_path_factory.mktemp("browser"), free_port(LOCALHOST)),
        free_port(LOCALHOST),
    )
    try:
        services.start_server()
        command = [sys.executable, "-m", "flows.cli", "run", str(tiny_recipe)]
        subprocess.run(
            command, cwd=REPOSITORY, env=services.environment, check=True, timeout=DEADLINE_S
        )
        services.start_mlflow(port)
        (run,) = wait_until(lambda: services.api.post("flow_runs/filter", {}), "the flow run")
        mlflow_run = json.loads((run_folder(services.home) / "run.json").read_text())[
            "mlflow_run_id"
        ]
        yield Shown(
            run_folder(services.home),
            f"http://127.0.0.1:{services.port}/runs/flow-run/{run['id']}",
            f"http://127.0.0.1:{port}/#/experiments/1/runs/{mlflow_run}",
            login_address(f"http://127.0.0.1:{port}", key_of(services.home, MLFLOW_SERVER)),
        )
    finally:
        services.close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as browser:
        yield browser


def picture(browser: Browser, name: str, folder: Path) -> Image.Image:
    """Of the page in view, kept where `SCREENSHOTS` says."""
    data = browser.picture(Path(os.environ.get("SCREENSHOTS") or folder) / f"{name}.png")
    return Image.open(io.BytesIO(data)).convert("RGB")


def reply(row: dict[str, Any]) -> tuple[str, str]:
    """What the tables show of an answered row: the reply and its reward."""
    return row["response"].strip(), str(row["reward"])


def num_green(image: Image.Image) -> int:
    """Pixels in the colour of what is completed."""
    pixels = image.get_flattened_data()
    return sum(red < 70 and green > 130 and blue < 110 for red, green, blue in pixels)  # type: ignore[misc]


def test_prefect_shows_the_graph_and_the_log(
    shown: Shown, browser: Browser, tmp_path: Path
) -> None:
    browser.open(
        shown.prefect,
        "document.querySelector('canvas') && document.body.innerText.includes('Completed')",
    )
    x, y, right, bottom = browser.value(
        "(({left, top, right, bottom}) => [left, top, right, bottom - 40])"
        "(document.querySelector('canvas').getBoundingClientRect())"
    )

    def graph() -> Image.Image:
        """The task runs; the bar below them shows the flow run alone."""
        return picture(browser, "prefect-run", tmp_path).crop(
            (int(x), int(y), int(right), int(bottom))
        )

    wait_until(lambda: num_green(graph()) > 1500, "the graph's completed task runs")
    assert [
        name for name in ("evaluate baseline", "train-iteration 3/3") if name not in browser.text()
    ] == []


def test_prefect_shows_what_each_task_left(shown: Shown, browser: Browser, tmp_path: Path) -> None:
    tab = (
        "[...document.querySelectorAll('.p-tab')].find(tab => tab.textContent.trim() === "
        "'Artifacts')"
    )
    samples = (
        "[...document.querySelectorAll('a')].find(card => card.textContent.includes('before and "
        "after training'))"
    )
    browser.open(shown.prefect, tab)
    browser.value(f"{tab}.click()")
    browser.wait_for(samples)
    names = {
        "validation",
        "cache",
        "evaluation",
        "samples",
        "comparison",
        "reward-curve",
        "mlflow-run",
        "model",
    }
    assert names - set(browser.text().splitlines()) == set()
    browser.value(f"{samples}.scrollIntoView({{block: 'center'}})")
    picture(browser, "prefect-artifacts", tmp_path)

    browser.value(f"{samples}.click()")
    browser.wait_for("document.querySelector('tbody tr')")
    cells = (
        "[...document.querySelectorAll('tbody tr')].map(row => [...row.cells].map(cell => "
        "cell.textContent.trim()))"
    )
    rows = [
        read_samples(shown.folder / "samples" / f"evaluate-{label}.jsonl")
        for label in ("baseline", "final")
    ]
    assert browser.value(cells) == [
        [prompt_text(one["prompt"]), one["ground_truth"], *reply(one), *reply(two)]
        for one, two in zip(*rows, strict=True)
    ]
    picture(browser, "prefect-samples", tmp_path)


def test_mlflow_shows_curves_and_samples(shown: Shown, browser: Browser, tmp_path: Path) -> None:
    # Logs in, if the browser has not.
    browser.open(shown.login, "document.body")
    browser.open(shown.mlflow, "document.body.innerText.includes('reward_mean')")
    assert "tiny" in browser.text()
    browser.open(
        f"{shown.mlflow}/model-metrics",
        "document.querySelectorAll('.js-plotly-plot path').length > 4",
    )
    picture(browser, "mlflow-curves", tmp_path)
    browser.open(f"{shown.mlflow}/artifacts", "document.body.innerText.includes('report.html')")
    assert "samples" in browser.text()


def test_the_report_shows_curves_and_samples(
    shown: Shown, browser: Browser, tmp_path: Path
) -> None:
    browser.open((shown.folder / "report.html").as_uri(), "document.querySelector('#samples')")
    assert browser.value("document.querySelectorAll('svg path, svg polyline').length") > 4
    rows = (shown.folder / "samples" / "evaluate-final.jsonl").read_text().splitlines()
    question = json.loads(rows[0])["prompt"][-1]["content"].split("\n")[0][:40]
    assert question in browser.value("document.body.textContent")
    picture(browser, "report", tmp_path)
