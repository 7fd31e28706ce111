"""Configuration of the site of these pages, which Sphinx reads as Markdown (`make docs`)."""

import sys
from pathlib import Path

# autodoc imports modules as a type checker sees them, in which state pydantic cannot build the
# models of fastapi; this can go when it can.
import fastapi  # noqa: F401  # pyright: ignore[reportUnusedImport]
from pygments.lexers.data import JsonLexer
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

project = "rl-train"
# The packages of the API reference, and the extension in this folder.
sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
extensions = ["myst_parser", "sphinx.ext.autodoc", "markdown_docstrings"]
html_theme = "furo"
html_title = "rl-train"
html_copy_source = False

myst_heading_anchors = 3
"""Headings are linked to by GitHub's rule."""

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "show-inheritance": True,
    "exclude-members": "model_config, model_post_init",
}
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 100
suppress_warnings = ["ref.python"]
"""Annotations name classes without their module, so `Config` has several targets."""


def setup(app: Sphinx) -> None:
    """Add colours for rows of JSON. Words after a fence's language are for the tests."""
    app.add_lexer("jsonl", JsonLexer)
    app.add_lexer("txt", TextLexer)
