"""The documentation against the code: reference pages are up to date; links, commands and messages
are there."""

import ast
import json
import re
from pathlib import Path

import pytest
import typer
import yaml

from flows.cli import app
from flows.reference.pages import FOLDER, pages
from rl_core.reporting.metric_catalogue import GROUPS
from rl_core.runs.recipes import chain_names, recipe_names
from tests.metric_notes import unknown_metrics

ROOT = Path(__file__).parents[2]
DOCS = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]
PAGES = [*DOCS, *sorted((ROOT / "docs" / "reference").rglob("*.md"))]
SOURCES = [
    path
    for folder in ("rl_core", "schemas", "tasks", "flows")
    for path in (ROOT / folder).rglob("*.py")
]
SPANS = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize(
    "name",
    [
        *(f"reference/{name}.md" for name in ("recipe", "plugins", "commands", "metrics")),
        "seeds.md",
    ],
)
def test_the_reference_is_what_the_code_says(name: str):
    assert (FOLDER / name).read_text(encoding="utf-8") == pages()[name], "run: make reference"


def test_every_key_of_a_recipe_is_described():
    rows = [line for line in pages()["reference/recipe.md"].splitlines() if line.startswith("| `")]
    assert len(rows) > 100
    assert [row for row in rows if row.endswith("|  |")] == []


@pytest.mark.parametrize(
    ("preset", "key", "default"),
    [
        ("rloo", "advantage", "`{'name': 'rloo'}`"),
        ("gspo", "loss", "`{'name': 'gspo'}`"),
        ("dapo", "dynamic_sampling", "`True`"),
        ("reinforce_plus_plus", "kl", "`{'coef': 0.01, 'kind': 'k1', 'place': 'reward'}`"),
        ("grpo", "kl", ""),
        ("simpo", "beta", "`2.0`"),
    ],
)
def test_a_preset_shows_its_own_defaults(preset: str, key: str, default: str):
    (section,) = re.findall(
        rf"^### `{preset}`\n(.*?)^###",
        pages()["reference/plugins.md"],
        flags=re.DOTALL | re.MULTILINE,
    )
    (row,) = (line for line in section.splitlines() if line.startswith(f"| `{key}` "))
    assert row.split(" | ")[2].strip() == default


def test_every_described_metric_is_logged_somewhere():
    texts = [
        path.read_text(encoding="utf-8") for path in SOURCES if path.name != "metric_catalogue.py"
    ]
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    names = [note.name for notes in GROUPS.values() for note in notes]
    assert len(names) > 70 and len(names) == len(set(names))
    strange = {name: set(re.split(r"<\w+>|/", name)) - words - {""} for name in names}
    assert {name: parts for name, parts in strange.items() if parts} == {}


def test_a_metric_without_a_description_is_found():
    assert (
        unknown_metrics(
            ["text/loss", "seconds/train", "env/gsm8k/correct", "eval/ocr", "critic/lr"]
        )
        == []
    )
    assert unknown_metrics(["text/loess", "env/correct"]) == ["env/correct", "text/loess"]


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_links_lead_somewhere(path: Path):
    targets = re.findall(
        r"\]\((?!https?://)([^)\s]+)", SPANS.sub("", path.read_text(encoding="utf-8"))
    )
    broken = []
    for target in targets:
        name, _, heading = target.partition("#")
        page = path.parent / name if name else path
        if not page.exists() or (heading and heading not in anchors(page)):
            broken.append(target)
    assert broken == []


def anchors(page: Path) -> set[str]:
    """What links can name in a page, by GitHub's rule."""
    titles = re.findall(
        r"^#+ (.+)$",
        re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL),
        re.MULTILINE,
    )
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_site_has_every_page_and_links_to_nothing_outside():
    shown = set(
        re.findall(
            r"^([\w/-]+)$", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), re.MULTILINE
        )
    )
    assert shown == {
        str(path.relative_to(ROOT / "docs").with_suffix("")) for path in PAGES if within_site(path)
    }
    texts = {relative(path): path.read_text("utf-8") for path in PAGES if path.parent != ROOT}
    assert [name for name, text in texts.items() if name.count("/") == 1 and "](../" in text] == []


def within_site(path: Path) -> bool:
    return path.parent != ROOT and path.name != "index.md"


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_code_blocks_are_well_formed(path: Path):
    checks = {"yaml": yaml.safe_load, "python": ast.parse, "json": json.loads, "jsonl": each_line}
    for language, code in re.findall(
        r"^```(\w+)[^\n]*\n(.*?)^```", path.read_text("utf-8"), re.DOTALL | re.MULTILINE
    ):
        checks.get(language, str)(code)


def each_line(code: str) -> None:
    for line in code.splitlines():
        json.loads(line)


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
    assert recipes - {*recipe_names(), *chain_names()} == set()


def test_messages_that_are_explained_occur_in_the_code():
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    # A message may be written in several strings, one to a line.
    code = re.sub(r'"\s+f?"', "", code)
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) > 10
    pieces = {
        message: [piece for piece in message.split("…") if piece.strip()] for message in messages
    }
    assert [
        message
        for message, parts in pieces.items()
        if not all(part.strip() in code for part in parts)
    ] == []


def test_every_module_of_the_api_pages_is_there():
    pages = (ROOT / "docs" / "reference" / "api").glob("*.md")
    named = re.findall(r"auto(?:module|class):: ([\w.]+\.\w+)", "".join(map(Path.read_text, pages)))
    assert named
    assert not [name for name in named if not _is_importable(name)]


def _is_importable(name: str) -> bool:
    """Return True for a module, and for a name in one, without importing it."""
    path = ROOT.joinpath(*name.split("."))
    files = (path.with_suffix(".py"), path.parent.with_suffix(".py"))
    return path.is_dir() or any(file.is_file() for file in files)
