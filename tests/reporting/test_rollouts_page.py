"""The page of rollouts: by itself, bounded, and harmless whatever a reply says."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

from rl_core.reporting.rollouts_page import (
    MOST_CHARACTERS,
    MOST_ROWS,
    MOST_STEPS,
    spread,
    write_rollouts_page,
)
from rl_core.reporting.run_record import RunRecord
from rl_core.runs.run_folder import RunFolder
from rl_core.runtime.home import Home
from tests.runs.rollouts.stored import batch, recipe, store

HARM = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \u2028 <!-- {{ 7 * 7 }}"


def record_of(root: Path) -> RunRecord:
    folder = RunFolder(root)
    folder.create(yaml.safe_dump(recipe().model_dump(mode="json")))
    return RunRecord(folder)


def written(root: Path) -> str:
    path = write_rollouts_page(record_of(root), Home(root / "home"), root / "report.html")
    assert path is not None and path == root / "rollouts.html"
    return path.read_text()


def data_of(page: str) -> dict[str, Any]:
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    return json.loads(text)


class Parts(HTMLParser):
    """Tags of a page, and what would be fetched."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        self.fetched += [one for one in (found.get("src"),) if one]
        if tag == "link":
            self.fetched.append(str(found.get("href")))


def test_what_a_reply_says_is_data_and_nothing_else(tmp_path: Path):
    store(tmp_path, {1: batch([HARM, HARM], [HARM, "fine"], [1.0, 0.0])})
    page = written(tmp_path)
    parts = Parts(page)
    assert parts.fetched == [] and parts.tags.count("script") == 2 and "img" not in parts.tags
    assert "innerHTML" not in page and "url(" not in page
    first, _ = data_of(page)["rows"]
    assert first["messages"] == [["user", f"asked about {HARM}", None], ["assistant", HARM, 1.0]]


def test_tokens_have_their_advantage_and_their_distance(tmp_path: Path):
    store(tmp_path, {3: batch(["a", "a", "b"], ["x", "yy", "z"], [1.0, 0.5, 0.0])})
    data = data_of(written(tmp_path))
    assert data["rows"][1]["tokens"] == [["⟨11⟩", 1, 0.5, 0.25], ["⟨12⟩", 1, 0.5, 0.25]]
    assert data["history"] == {"a": [[3, 1.0], [3, 0.5]], "b": [[3, 0.0]]}


def test_a_page_is_bounded_and_says_what_it_holds(tmp_path: Path):
    rows = batch([f"p{number // 4}" for number in range(40)], ["x" * 9000] * 40, [1.0] * 40)
    store(tmp_path, dict.fromkeys(range(1, 41), rows))
    page = written(tmp_path)
    data = data_of(page)
    steps = {row["step"] for row in data["rows"]}
    assert len(steps) == MOST_STEPS and {1, 40} <= steps
    assert len(data["rows"]) <= MOST_ROWS
    groups = [row["group"] for row in data["rows"] if row["step"] == 1]
    assert groups and len(groups) % 4 == 0, "whole groups"
    assert len(data["rows"][0]["messages"][1][1]) < MOST_CHARACTERS + 50
    assert f"this page holds {len(data['rows'])} of 1600 stored rows" in page


@pytest.mark.parametrize("num", [1, 2, 24, 25, 1000])
def test_the_first_and_the_last_step_are_always_there(num: int):
    steps = spread(list(range(1, num + 1)), MOST_STEPS)
    assert (steps[0], steps[-1], len(set(steps))) == (1, num, min(num, MOST_STEPS))


def test_a_run_without_rollouts_has_no_such_page(tmp_path: Path):
    assert write_rollouts_page(record_of(tmp_path), Home(tmp_path), tmp_path / "r.html") is None
