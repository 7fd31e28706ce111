"""A report and a comparison of runs: everything is on the page, and the page asks nothing from
outside."""

import base64
import io
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from prefect.logging import disable_run_logger

from rl_core.errors import StorageError
from rl_core.reporting.champion_recipe import difference_to_champion
from rl_core.reporting.compare import compare_page, compare_runs, differing_settings
from rl_core.reporting.curves import first_curves, further_curves
from rl_core.reporting.lineage_page import LineageFormat, show_lineage
from rl_core.reporting.report import report_page, write_report
from rl_core.reporting.run_record import RunRecord, find_run
from rl_core.runs.session import close_sessions
from rl_core.runtime.home import Home
from rl_core.tracking.lineage import trace
from schemas.receipts import Approval
from schemas.sections.watching import Reaction, WatchConfig
from tasks import write_report as write_report_task
from tasks.choose_iteration import choose_iteration
from tasks.judge_model import judge_model
from tasks.promote_model import promote_model
from tests.made_runs import MadeRun, evaluated, make_run, recipe_of, register


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    root = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, disable_run_logger():
        patch.setenv("RL_TRAIN_HOME", str(root))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield Home.default()
    close_sessions()


@pytest.fixture(scope="module")
def runs(
    home: Home, tmp_path_factory: pytest.TempPathFactory, tiny_model_dir: Path
) -> list[MadeRun]:
    """One run that is done, and one of another seed whose version has not been registered."""
    folder = tmp_path_factory.mktemp("rows")
    done = make_run(
        recipe_of("made", folder, tiny_model_dir), [0.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]
    )
    gate = judge_model.fn(done.plan, done.baseline, done.final)
    promote_model.fn(done.plan, register(done), gate, Approval(given=True))
    return [done, make_run(recipe_of("made", folder, tiny_model_dir, seed=1), [0.0] * 4, [1.0] * 4)]


class Page(HTMLParser):
    """Balanced tags, headings, and whatever would be fetched."""

    VOID = ("meta", "br", "img", "line", "rect", "circle", "polyline", "polygon")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.ids: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in ("script", "link", "iframe"):
            self.fetched.append(tag)
        if (source := found.get("src")) and not source.startswith("data:"):
            self.fetched.append(source)
        self.ids += [found["id"]] if found.get("id") else []

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_report_holds_everything_and_stands_by_itself(home: Home, runs: list[MadeRun]):
    (runs[0].folder.root / "samples" / "pictures-final.png").write_bytes(b"\x89PNG")
    path = write_report(find_run(home, runs[0].folder.root.name), home)
    assert path == runs[0].folder.root / "report.html"
    text = path.read_text()
    page = Page(text)
    assert page.fetched == []
    assert "url(" not in text and "@import" not in text
    assert page.ids == [
        "curves",
        "phases",
        "evaluations",
        "champion",
        "samples",
        "pictures",
        "data",
        "lineage",
        "recipe",
    ]
    for shown in (
        "<b>0.250</b>", "<b>0.750</b>", ">+0.500</b>",  # accuracy before, after, and the change
        "prefers-color-scheme: dark", "@media print",
        "4.0 s", "3.0 s",  # rollout and train, two steps
        "baseline says 0.0", "final says 1.0",
        "accuracy 0.750 against 0.250 of baseline",
        "8 of 8 rows accepted",
        runs[0].plan.cache.run_hash, *(source.sha256 for source in runs[0].plan.cache.sources),
        "data:image/png;base64,",
        "num_iterations: 1",
    ):  # fmt: skip
        assert shown in text, shown
    assert "<b>question" not in text, "what a row says is text, never markup"
    assert "&lt;b&gt;question" in text


def test_what_a_person_looks_at_first_comes_first_of_every_track(runs: list[MadeRun]):
    record = RunRecord(runs[0].folder)
    names = ("text/entropy", "images/grad_norm", "images/reward/judge/mean")
    vars(record)["steps"] = [
        {"step": 1, **dict.fromkeys(names, 0.5)},
        {"step": 2, **dict.fromkeys(names, 0.25)},
    ]
    first, further = "".join(first_curves(record)), "".join(further_curves(record))
    assert [name in first for name in names] == [True, True, False]
    assert [name in further for name in names] == [False, False, True]


def test_a_report_shows_what_rang_and_each_chart_its_values(home: Home, runs: list[MadeRun]):
    record = RunRecord(runs[1].folder)
    vars(record)["steps"] = [
        {"step": step, "clip_fraction": 0.5, "lr": 1e-5, "seconds/rollout": 2.0, "reward_mean": 0.1}
        for step in range(1, 5)
    ]
    text = report_page(record, home)
    Page(text)
    assert '<h2 id="watchers">' in text and "<b>clip</b>, steps 3 to 4: 50% of the actions" in text
    assert "Stopped by" not in text and "No watcher rang" not in text
    for title in ("clip fraction", "lr", "seconds per phase"):
        (chart,) = re.findall(f'<svg[^>]*aria-label="{title}: .*?</svg>', text, re.DOTALL)
        assert chart.count('<g class="at">') == 4, title
    assert ">clip_fraction: 0.5<" in text and ">rollout: 2<" in text
    sections = {"watch": WatchConfig(clip=Reaction.STOP)}
    vars(record)["recipe"] = record.recipe.model_copy(update=sections)
    del vars(record)["alarms"]
    assert "Stopped by the watcher clip (watch.clip: stop)" in report_page(record, home)


def test_a_report_compares_its_recipe_with_the_champions(home: Home, runs: list[MadeRun]):
    own = RunRecord(runs[0].folder)
    assert difference_to_champion(own, home) is None, "it beat the baseline"
    other = RunRecord(runs[1].folder)
    found = difference_to_champion(other, home)
    assert found is not None
    assert (found.other, found.rows) == ("rl-train-made v1", {"seed": ("0", "1")})
    assert 'id="champion-recipe"' in report_page(other, home)
    assert 'id="champion-recipe"' not in report_page(own, home)


def test_a_run_that_got_worse_says_which_iteration_it_registered_and_why(
    home: Home, tmp_path: Path, tiny_model_dir: Path
):
    changes = {"registration": {"from": "best"}, "evaluation": {"eval_every": 1}}
    steps = {"num_iterations": 2, "steps_per_iteration": 2}
    recipe = recipe_of("worse", tmp_path, tiny_model_dir, training=steps, **changes)
    made = make_run(recipe, [0.0] * 4, [1.0] * 4)
    with made.folder.publish_checkpoint(2, {"step": 4}, keep_last=2):
        pass
    for iteration, reward in ((1, 1.0), (2, 0.0)):
        evaluated(made.folder, f"iteration-{iteration}", 2 * iteration, [reward] * 4)
    choice = choose_iteration.fn(made.plan)
    assert (choice.iteration, choice.last) == (1, 2)
    version = register(made)
    promote_model.fn(
        made.plan,
        version,
        judge_model.fn(made.plan, made.baseline, made.final),
        Approval(given=True),
    )
    lineage = trace(home.mlflow_uri, version.name, version.version)
    assert (lineage.iteration, lineage.chosen_because) == (1, choice.reason)
    assert lineage.checkpoint == str(made.folder.checkpoint(1))
    assert f"from     iteration 1 ({choice.reason}), checkpoint " in str(lineage)
    assert "From iteration 1 (accuracy 1.000" in show_lineage(lineage, LineageFormat.HTML)
    card = (made.folder.export / "README.md").read_text()
    assert f"These are the weights of iteration 1: {choice.reason}." in card
    page = report_page(RunRecord(made.folder), home)
    assert str(choice) in page and ", iteration 1 of 2" in page


def test_pictures_asked_about_and_made_are_shown_small(
    home: Home, runs: list[MadeRun], tmp_path: Path
):
    from PIL import Image

    Image.new("RGB", (2000, 10), "red").save(tmp_path / "made.png")
    path = runs[1].folder.root / "samples" / "evaluate-final.jsonl"
    kept = path.read_text()
    rows = [json.loads(line) for line in kept.splitlines()]
    rows[0] |= {"made": str(tmp_path / "made.png"), "images": [str(tmp_path / "made.png")]}
    rows[1] |= {"made": str(tmp_path / "gone.png")}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = write_report(
        find_run(home, runs[1].folder.root.name), home, tmp_path / "report.html"
    ).read_text()
    path.write_text(kept)
    (made,) = re.findall('<img src="data:image/png;base64,([^"]*)" alt="picture made">', text)
    assert Image.open(io.BytesIO(base64.b64decode(made))).size == (512, 3)


def test_a_run_that_is_not_done_has_a_report_too(home: Home, runs: list[MadeRun], tmp_path: Path):
    path = write_report(
        find_run(home, runs[1].plan.mlflow_run_id), home, tmp_path / "deep" / "r.html"
    )
    text = path.read_text()
    Page(text)
    assert "not finished: 2 of\n2 steps" in text
    assert 'id="champion"' not in text


def test_the_task_puts_the_report_into_mlflow(home: Home, runs: list[MadeRun]):
    from rl_core.runs.session import session_for

    path = Path(write_report_task.write_report.fn(runs[0].plan))
    tracking = session_for(runs[0].plan).tracking
    tracking.flush()
    assert "report.html" in {
        item.path for item in tracking.client.list_artifacts(runs[0].plan.mlflow_run_id)
    }
    assert path.is_file()


def test_runs_are_found_by_name_id_and_version(home: Home, runs: list[MadeRun]):
    name = runs[0].folder.root.name
    for words in (
        name,
        runs[0].plan.mlflow_run_id,
        "models:/rl-train-made@champion",
        "models:/rl-train-made/1",
    ):
        assert find_run(home, words).name == name
    with pytest.raises(StorageError, match=f"no run 'x{name[1:]}' .*did you mean '{name}'"):
        find_run(home, f"x{name[1:]}")


def test_a_comparison_names_what_differs_and_by_how_much(home: Home, runs: list[MadeRun]):
    records = [find_run(home, made.folder.root.name) for made in runs]
    assert differing_settings(records) == {"seed": ["0", "1"]}
    first, second = compare_runs(records)
    assert first.change is None
    assert second.change is not None
    assert second.change.mean == 0.25
    assert first.seconds == 7.0
    text = compare_page(records)
    assert Page(text).fetched == []
    assert all(made.folder.root.name in text for made in runs)
    # Rewards, loss and seconds, of both runs; held-out scores are dots.
    assert len(re.findall("<polyline", text)) == 6
    assert text.count('<li class="mono"><i style="border-color:') == len(records)
    assert "+0.250" in text
