"""A path, a reply or a row in the terminal is shown as it is, whatever it looks like to rich or to
the terminal."""

import pytest

from flows.console import Console, Table, visible
from flows.display import Display
from rl_core.runs.recipes import load_recipe
from rl_core.trainers.progress import ProgressEvent, announce

MARKUP = "rows [red]x[/red] [/] :train: @1.5 'a' \\[b]"


def test_a_text_is_no_markup(capsys: pytest.CaptureFixture[str]):
    console, table = Console(), Table(MARKUP)
    console.say(MARKUP)
    table.column(MARKUP)
    table.row(MARKUP)
    console.print(table)
    with console.spinner() as spinner:
        spinner.tell(MARKUP)
    with console.progress() as bars:
        bars.add_task(MARKUP, total=1)
    assert capsys.readouterr().out.count(MARKUP) == 5


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("back\b\rward", "back\\x08\\rward"),
        ("a\u202eb", "a\\u202eb"),
        (b"caf\xe9".decode("utf-8", "surrogateescape"), "caf\\udce9"),
    ],
)
def test_what_steers_a_terminal_is_written_out(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
):
    Console().say(text)
    assert capsys.readouterr().out == f"{shown}\n"


@pytest.mark.parametrize("text", ["line\nbreak\ttab", "½ 训练 é\xa0: 👩\u200d🚀"])
def test_other_text_stays(text: str):
    assert visible(text) == text


def test_the_display_shows_paths_and_notes_as_they_are(capsys: pytest.CaptureFixture[str]):
    with Display(load_recipe("text")) as display:
        display.note(MARKUP)
        announce(ProgressEvent(phase="note", text=MARKUP))
    assert capsys.readouterr().out.count(MARKUP) == 2
