"""The pages that are made from the code, by path below `docs`."""

from pathlib import Path

from flows.reference.commands import commands_page
from flows.reference.metrics import metrics_page
from flows.reference.plugins import plugins_page
from flows.reference.promises import promises_page
from flows.reference.recipe import recipe_page

FOLDER = Path(__file__).resolve().parents[2] / "docs"
HEADER = "<!-- Made from the code by `make reference`; change it there. -->\n\n"


def pages() -> dict[str, str]:
    """Return the Markdown of each page by its path in `FOLDER`."""
    made = {
        "reference/recipe.md": recipe_page(),
        "reference/plugins.md": plugins_page(),
        "reference/commands.md": commands_page(),
        "reference/metrics.md": metrics_page(),
        "seeds.md": promises_page(),
    }
    return {name: HEADER + text for name, text in made.items()}
