"""What the Prefect UI shows of a run: tables, the curve, and links. Keys are lower case with dashes.

They are sent in the background and in order, so that a run goes on while the server is away; `delivered` waits for
them at the end of a flow.
"""

import base64
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from prefect.artifacts import (
    create_image_artifact,
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.context import FlowRunContext

from rl_core.runtime.background_queue import Deliveries

MAX_CELL = 300
OUTAGE_S = 600.0
"""The end of a flow waits this long for a server that does not answer."""
HASTE_S = 10.0
"""So does the end of one that failed or was cancelled."""
SERVER_ERROR = 500
_MARKS = re.compile(r"[\\`*\[\]<>~&]|(?<!\w)_|_(?!\w)")
_LINE_STARTS = re.compile(r"^(\d{0,9})([#+=.)-])(?=[\s#=-]|$)", re.MULTILINE)
"""What makes a line a heading, a list or a rule."""
logger = logging.getLogger(__name__)


def shorten(text: object) -> str:
    """A table cell that does not run over."""
    value = str(text)
    return value if len(value) <= MAX_CELL else value[: MAX_CELL - 1] + "…"


def as_it_is(text: str) -> str:
    """What the UI, which reads Markdown in a table's cells, shows as `text`: tags and marks included."""
    lines = "\n".join(line.strip() for line in text.splitlines())
    return _LINE_STARTS.sub(r"\1\\\2", _MARKS.sub(r"\\\g<0>", lines))


def in_a_run() -> bool:
    """Whether a flow run is there to hang artifacts on; a task called alone through `fn` has none."""
    return FlowRunContext.get() is not None


def table(key: str, rows: list[dict[str, Any]], description: str) -> None:
    """Show rows as a table. What a cell holds is text, such as a reply with `<think>` or `####` in it."""
    shown = [{name: as_it_is(shorten(value)) for name, value in row.items()} for row in rows]
    _send(lambda: create_table_artifact(key=key, table=shown, description=description))


def markdown(key: str, text: str, description: str) -> None:
    """Show formatted text."""
    _send(lambda: create_markdown_artifact(key=key, markdown=text, description=description))


def picture(key: str, path: Path, description: str) -> None:
    """Show a PNG as it is now; it travels inside the artifact, since the UI cannot reach local files."""
    png = path.read_bytes()
    _send(lambda: _create_picture(key, png, description))


def drawing(key: str, draw: Callable[[Path], object], description: str) -> None:
    """Show a PNG that is drawn only when it is sent. Args: draw: writes it where it is told."""

    def send() -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{key}.png"
            draw(path)
            _create_picture(key, path.read_bytes(), description)

    _send(send)


def link(key: str, url: str, text: str, description: str) -> None:
    """Show a link."""
    _send(lambda: create_link_artifact(key=key, link=url, link_text=text, description=description))


class Progress:
    """A progress bar in the UI, from 0 to 100 percent."""

    def __init__(self, key: str, description: str) -> None:
        self._ids: list[Any] = []
        _send(lambda: self._ids.append(create_progress_artifact(0.0, key=key, description=description)))

    def update(self, share: float) -> None:
        """Set the share that is done, 0 to 1."""
        _send(lambda: update_progress_artifact(self._ids[0], round(100 * share, 1)))


@contextmanager
def delivered() -> Iterator[None]:
    """Wait at the end of the block until the UI has everything. What it never got is logged, and costs no run."""
    patience_s = HASTE_S
    try:
        yield
        patience_s = OUTAGE_S
    finally:
        if not _deliveries.wait(patience_s):
            logger.warning("the Prefect server does not answer; %d artifacts were not sent", len(_deliveries))
        if refused := _deliveries.refusals():
            logger.warning("%d artifacts were refused, the first because of: %s", len(refused), refused[0])


def _create_picture(key: str, png: bytes, description: str) -> None:
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    create_image_artifact(key=key, image_url=url, description=description)


def _send(call: Callable[[], object]) -> None:
    """Call after the calls before it, in the context of the present task run; without a flow run, not at all."""
    if in_a_run():
        context = copy_context()
        _deliveries.put(lambda: context.run(call))


def _is_outage(error: Exception) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= SERVER_ERROR
    return isinstance(error, httpx.TransportError)


_deliveries: Deliveries[Callable[[], object]] = Deliveries(lambda call: call(), _is_outage)
