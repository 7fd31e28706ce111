"""The site of these pages: Sphinx reads them as Markdown (`make docs`). On GitHub the same files read as they are."""

from pygments.lexers.data import JsonLexer
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "rl-train"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "rl-train"
html_copy_source = False

myst_heading_anchors = 3
"""Headings are linked to by GitHub's rule."""


def setup(app: Sphinx) -> None:
    """Colours for rows of JSON. What follows the language in a fence's opening line is for the tests."""
    app.add_lexer("jsonl", JsonLexer)
    app.add_lexer("txt", TextLexer)
