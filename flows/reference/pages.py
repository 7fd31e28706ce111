"""The reference pages by file name, and their folder."""

from pathlib import Path

from flows.reference.commands import commands_page
from flows.reference.metrics import metrics_page
from flows.reference.plugins import plugins_page
from flows.reference.recipe import recipe_page

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reference"
HEADER = "<!-- Made from the code by `make reference`; change it there. -->\n\n"


def pages() -> dict[str, str]:
    """Return the Markdown of each page by file name."""
    made = {
        "recipe.md": recipe_page(),
        "plugins.md": plugins_page(),
        "commands.md": commands_page(),
        "metrics.md": metrics_page(),
    }
    return {name: HEADER + text for name, text in made.items()}
