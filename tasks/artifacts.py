"""What the Prefect UI shows of a run: tables, the curve, and links. Keys are lower case with dashes."""

import base64
from pathlib import Path
from typing import Any

from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.context import FlowRunContext

MAX_CELL = 300


def shorten(text: object) -> str:
    """A table cell that does not run over."""
    value = str(text)
    return value if len(value) <= MAX_CELL else value[: MAX_CELL - 1] + "…"


def in_a_run() -> bool:
    """Whether a flow run is there to hang artifacts on; a task called alone through `fn` has none."""
    return FlowRunContext.get() is not None


def table(key: str, rows: list[dict[str, Any]], description: str) -> None:
    """Show rows as a table."""
    if in_a_run():
        shown = [{name: shorten(value) for name, value in row.items()} for row in rows]
        create_table_artifact(key=key, table=shown, description=description)


def markdown(key: str, text: str, description: str) -> None:
    """Show formatted text."""
    if in_a_run():
        create_markdown_artifact(key=key, markdown=text, description=description)


def picture(key: str, path: Path, description: str) -> None:
    """Show a PNG; it travels inside the artifact, since the UI cannot reach local files."""
    if in_a_run():
        data = base64.b64encode(path.read_bytes()).decode()
        create_image_artifact(key=key, image_url=f"data:image/png;base64,{data}", description=description)


def link(key: str, url: str, text: str, description: str) -> None:
    """Show a link."""
    if in_a_run():
        create_link_artifact(key=key, link=url, link_text=text, description=description)


class Progress:
    """A progress bar in the UI, from 0 to 100 percent."""

    def __init__(self, key: str, description: str) -> None:
        self._id: Any = create_progress_artifact(0.0, key=key, description=description) if in_a_run() else None

    def update(self, share: float) -> None:
        """Set the share that is done, 0 to 1."""
        if self._id is not None:
            update_progress_artifact(self._id, round(100 * share, 1))
