"""Configuration of the site of these pages, which Sphinx reads as Markdown (`make docs`)."""

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
    """Add colours for rows of JSON. Words after a fence's language are for the tests."""
    app.add_lexer("jsonl", JsonLexer)
    app.add_lexer("txt", TextLexer)
