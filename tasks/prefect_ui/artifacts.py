"""Artifacts of a run in the Prefect UI: tables, the curve, and links. Keys are lower case with
dashes.

Artifacts are sent in the background and in order, so that a run goes on while the server is away;
`delivered` waits for them at the end of a flow.
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
"""Seconds that the end of a flow waits for a server that does not answer."""
HASTE_S = 10.0
"""Seconds that the end of a failed or cancelled flow waits for a server that does not answer."""
SERVER_ERROR = 500
_MARKS = re.compile(r"[\\`*\[\]<>~&]|(?<!\w)_|_(?!\w)")
_LINE_STARTS = re.compile(r"^(\d{0,9})([#+=.)-])(?=[\s#=-]|$)", re.MULTILINE)
"""Line starts that Markdown reads as a heading, a list or a rule."""
logger = logging.getLogger(__name__)


def shorten(text: object) -> str:
    """Shorten a text to the width of a table cell."""
    value = str(text)
    if len(value) <= MAX_CELL:
        return value
    return value[: MAX_CELL - 1] + "…"


def as_it_is(text: str) -> str:
    """Escape a text so that the UI, which renders Markdown in table cells, shows it literally, tags
    and marks included."""
    lines = "\n".join(line.strip() for line in text.splitlines())
    return _LINE_STARTS.sub(r"\1\\\2", _MARKS.sub(r"\\\g<0>", lines))


def in_a_run() -> bool:
    """Return True inside a flow run, to which artifacts can be attached; a task called alone
    through `fn` has none."""
    return FlowRunContext.get() is not None


def table(key: str, rows: list[dict[str, object]], description: str) -> None:
    """Publish rows as a table. Cell values are shown literally, such as a reply with `<think>` or
    `####` in it."""
    shown = []
    for row in rows:
        shown.append({name: as_it_is(shorten(value)) for name, value in row.items()})
    _send(lambda: create_table_artifact(key=key, table=shown, description=description))


def markdown(key: str, text: str, description: str) -> None:
    """Publish Markdown text."""
    _send(lambda: create_markdown_artifact(key=key, markdown=text, description=description))


def picture(key: str, path: Path, description: str) -> None:
    """Publish the current content of a PNG; it is embedded in the artifact, since the UI cannot
    read local files."""
    png = path.read_bytes()
    _send(lambda: _create_picture(key, png, description))


def drawing(key: str, draw: Callable[[Path], object], description: str) -> None:
    """Publish a PNG that is drawn only when it is sent.

    Args: draw: writes the PNG to the path that it gets.
    """

    def send() -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{key}.png"
            draw(path)
            _create_picture(key, path.read_bytes(), description)

    _send(send)


def link(key: str, url: str, text: str, description: str) -> None:
    """Publish a link."""
    _send(lambda: create_link_artifact(key=key, link=url, link_text=text, description=description))


class Progress:
    """A progress bar in the UI, from 0 to 100 percent."""

    def __init__(self, key: str, description: str) -> None:
        self._ids: list[Any] = []
        _send(
            lambda: self._ids.append(
                create_progress_artifact(0.0, key=key, description=description)
            )
        )

    def update(self, share: float) -> None:
        """Set the share of the work that is done, 0 to 1."""
        _send(lambda: update_progress_artifact(self._ids[0], round(100 * share, 1)))


@contextmanager
def delivered() -> Iterator[None]:
    """Wait at the end of the block until the UI has every artifact. Artifacts that could not be
    sent are logged; the run does not fail."""
    patience_s = HASTE_S
    try:
        yield
        patience_s = OUTAGE_S
    finally:
        if not _deliveries.wait(patience_s):
            logger.warning(
                "the Prefect server does not answer; %d artifacts were not sent", len(_deliveries)
            )
        if refused := _deliveries.refusals():
            logger.warning(
                "%d artifacts were refused, the first because of: %s", len(refused), refused[0]
            )


def _create_picture(key: str, png: bytes, description: str) -> None:
    url = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    create_image_artifact(key=key, image_url=url, description=description)


def _send(call: Callable[[], object]) -> None:
    """Queue a call after the earlier ones, in the context of the present task run; do nothing
    outside a flow run."""
    if in_a_run():
        context = copy_context()
        _deliveries.put(lambda: context.run(call))


def _is_outage(error: Exception) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code >= SERVER_ERROR
    return isinstance(error, httpx.TransportError)


_deliveries: Deliveries[Callable[[], object]] = Deliveries(lambda call: call(), _is_outage)
