"""Report, rollouts and comparison as a browser shows them, on a phone and on a desktop: nothing is
wider than the window, and no script fails.

`make test-browser` installs Chromium. The pictures go to the folder that `SCREENSHOTS` names, if
any.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from rl_core.data.store.atomic import atomic_write_text
from rl_core.reporting.compare import compare_page
from rl_core.reporting.report import write_report
from rl_core.reporting.run_record import RunRecord
from rl_core.runs.session import close_sessions
from rl_core.runtime.home import Home
from tests.e2e.browser import CHROMIUM, Browser, chromium
from tests.made_runs import MadeRun, make_run, recipe_of
from tests.runs.rollouts.stored import batch, store
from tests.watch.histories import history

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium: make test-browser installs it, as root, on Debian"
)
LONG = "word" * 60
"""A word that no line of a phone holds."""
NUM_STEPS = 6
PER_PAGE = 12


@dataclass(frozen=True)
class Pages:
    """Addresses of the pages of a sick run."""

    report: str
    rollouts: str
    compare: str


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path) -> Iterator[Pages]:
    root = tmp_path_factory.mktemp("pages")
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(root / "home"))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        kept = root, tiny_model_dir
        sick = make_run(recipe_of("sick", *kept), [0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0])
        other = make_run(recipe_of(f"other-{LONG[:60]}", *kept, seed=1), [0.0] * 4, [1.0] * 4)
        _roll_out(sick)
        records = [RunRecord(one.folder) for one in (sick, other)]
        vars(records[0])["steps"] = history(NUM_STEPS, clip_fraction=[0.1, 0.5])
        compared = root / "compare.html"
        atomic_write_text(compared, compare_page(records))
        report = write_report(records[0], Home.default(), root / "report.html")
        yield Pages(*(one.as_uri() for one in (report, root / "rollouts.html", compared)))
    close_sessions()


def _roll_out(run: MadeRun) -> None:
    prompts = [f"p{number // 4}" for number in range(16)]
    replies = [f"an answer of {LONG}", "some words " * 9] * 8
    replies = [f"{reply} number-{place}" for place, reply in enumerate(replies)]
    rewards = [number % 4 / 4 for number in range(16)]
    store(run.folder.root, dict.fromkeys((1, 2), batch(prompts, replies, rewards)))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("chromium") / "profile") as browser:
        yield browser


def looked_at(browser: Browser, tmp_path: Path, name: str, width: int) -> None:
    """Keep a picture, and check what holds for every page."""
    browser.picture(Path(os.environ.get("SCREENSHOTS", tmp_path)) / f"{name}-{width}.png")
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.errors == []


WIDTHS = pytest.mark.parametrize("width", [390, 1280])


@WIDTHS
def test_a_report_has_its_alarms_at_the_top_and_its_answers_equal_room(
    pages: Pages, browser: Browser, tmp_path: Path, width: int
) -> None:
    browser.resize(width)
    browser.open(pages.report, "document.querySelector('#samples')")
    top, curves = (
        browser.value(f"document.querySelector('{one}').getBoundingClientRect().top")
        for one in (".alarm", "#curves")
    )
    assert top < 300 and top < curves
    assert "clip, steps 4 to 6" in browser.text()
    cells = [f"document.querySelector('.pairs td:nth-child({one})')" for one in (3, 4)]
    before, after = (browser.value(f"{one}.getBoundingClientRect().width") for one in cells)
    assert before == pytest.approx(after, abs=2) and before > 0.25 * width
    looked_at(browser, tmp_path, "report", width)


@WIDTHS
def test_a_chart_says_its_values_under_the_pointer(
    pages: Pages, browser: Browser, tmp_path: Path, width: int
) -> None:
    browser.resize(width)
    browser.open(pages.report, "document.querySelector('#samples')")
    chart = "document.querySelector('svg[aria-label^=\"clip fraction\"]')"
    browser.value(f"{chart}.scrollIntoView({{block: 'center'}})")
    column = f"{chart}.querySelectorAll('.at')[2]"
    browser.point_at(f"{column}.querySelector('rect')")
    said = f"getComputedStyle({column}.querySelector('text:last-child')).visibility"
    browser.wait_for(f"{said} === 'visible'")
    assert browser.value(f"{column}.textContent").split() == ["step", "3", "clip_fraction:", "0.5"]
    looked_at(browser, tmp_path, "hover", width)


@WIDTHS
def test_rollouts_are_searched_turned_over_and_shown_by_token(
    pages: Pages, browser: Browser, tmp_path: Path, width: int
) -> None:
    browser.resize(width)
    browser.open(pages.rollouts, "document.querySelector('article')")
    num_shown = "document.querySelectorAll('article').length"
    assert browser.value(num_shown) == PER_PAGE
    browser.value("document.querySelector('#on').click()")
    browser.wait_for("document.querySelector('#where').textContent.includes('page 2 of 3')")
    browser.value("document.querySelector('#search').value = 'NUMBER-7'")
    browser.value("document.querySelector('#choice').dispatchEvent(new Event('input'))")
    browser.wait_for(f"{num_shown} === 2")
    assert browser.value("document.querySelector('#where').textContent") == "2 rows, page 1 of 1"
    browser.value("document.querySelector('article details').open = true")
    browser.wait_for("document.querySelector('.tokens span').style.background")
    assert browser.value("document.querySelectorAll('article svg circle').length") == 8
    looked_at(browser, tmp_path, "rollouts", width)


@WIDTHS
def test_a_comparison_fits(pages: Pages, browser: Browser, tmp_path: Path, width: int) -> None:
    browser.resize(width)
    browser.open(pages.compare, "document.querySelectorAll('svg').length > 2")
    assert "clip (steps 4 to 6)" in browser.value("document.body.textContent")
    looked_at(browser, tmp_path, "compare", width)
