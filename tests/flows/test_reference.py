"""The documentation against the code: reference pages are up to date; links, commands and messages are there."""

import re
from pathlib import Path

import pytest
import typer

from flows.cli import app
from flows.reference.pages import FOLDER, pages
from rl_core.recipes import recipe_names
from rl_core.reporting.metric_catalogue import GROUPS, unknown_metrics

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = [path for folder in ("rl_core", "schemas", "tasks", "flows") for path in (ROOT / folder).rglob("*.py")]
SPANS = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", ["recipe.md", "plugins.md", "commands.md", "metrics.md"])
def test_the_reference_is_what_the_code_says(name: str):
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run: make reference"


def test_every_key_of_a_recipe_is_described():
    rows = [line for line in pages()["recipe.md"].splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []


def test_every_described_metric_is_logged_somewhere():
    texts = [path.read_text(encoding="utf-8") for path in SOURCES if path.name != "metric_catalogue.py"]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    names = [note.name for notes in GROUPS.values() for note in notes]
    assert len(names) > 70 and len(names) == len(set(names))
    strange = {name: set(re.split(r"<\w+>|/", name)) - words - {""} for name in names}
    assert {name: parts for name, parts in strange.items() if parts} == {}


def test_a_metric_without_a_description_is_found():
    assert unknown_metrics(["text/loss", "seconds/train", "env/gsm8k/correct", "eval/ocr", "critic/lr"]) == []
    assert unknown_metrics(["text/loess", "env/correct"]) == ["env/correct", "text/loess"]


@pytest.mark.parametrize("path", DOCS, ids=relative)
def test_links_lead_somewhere(path: Path):
    targets = re.findall(r"\]\((?!https?://)([^)#\s]+)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("path", DOCS, ids=relative)
def test_commands_that_are_named_exist(path: Path):
    known = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    code = "\n".join(SPANS.findall(path.read_text(encoding="utf-8")))
    named = {
        word
        for words in re.findall(r"rl-train ([a-z][\w-]*(?:\|[\w-]+)*)\b(?![/:])", code)
        for word in words.split("|")
    }
    assert named - known == set()
    recipes = set(re.findall(r"rl-train run ([a-z][\w/-]*)\b(?!\.)", code))
    assert recipes - set(recipe_names()) == set()


def test_messages_that_are_explained_occur_in_the_code():
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) > 10
    pieces = {message: [piece for piece in message.split("…") if piece.strip()] for message in messages}
    assert [message for message, parts in pieces.items() if not all(part.strip() in code for part in parts)] == []
