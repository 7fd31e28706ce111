"""Completion of task runs on the Prefect server: no run that has ended here stays shown as running
there.

The end of a task run reaches the server as an event, which the server accepts before it stores it.
A server that is killed in between, or finds its database locked for long, has lost the event, and
shows the task as running for ever. The ends are therefore kept here and compared with the server's
at the end of a flow.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterId
from prefect.client.schemas.objects import TERMINAL_STATES
from prefect.events import Event
from prefect.events.clients import PrefectEventsClient
from prefect.events.worker import (
    EventsWorker,
    emit_events_to_cloud,
    should_emit_events_to_running_server,
)
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

GRACE_S = 3.0
"""Time within which an event is usually stored; it is sent again after that."""
OUTAGE_S = 60.0
"""Seconds that the end of a flow waits for a server that does not accept the events."""
HASTE_S = 10.0
"""Seconds that the end of a failed or cancelled flow waits for the server."""
POLL_S = 0.2
ASKED_AT_ONCE = 200
PREFIX = "prefect.task-run."
logger = logging.getLogger(__name__)
_ends: dict[UUID, Event] = {}
"""Final events by task run that the server has not yet been seen to have."""


@contextmanager
def recorded() -> Iterator[None]:
    """Wait at the end of the block until the server has the end of every task run in it. Events
    that it never accepted are logged.

    Nothing is done for Prefect Cloud, which stores events reliably, and without an address, where
    Prefect starts a server by itself.
    """
    if emit_events_to_cloud() or not should_emit_events_to_running_server():
        yield
        return
    patience_s = HASTE_S
    try:
        with _kept():
            yield
        patience_s = OUTAGE_S
    finally:
        if not _settled(patience_s):
            logger.warning(
                "the Prefect server shows %d task runs as running that have ended", len(_ends)
            )
        _ends.clear()


@contextmanager
def _kept() -> Iterator[None]:
    """Keep the final events of all task runs in the block."""
    send = PrefectEventsClient._emit

    async def keep(self: PrefectEventsClient, event: Event) -> None:
        if _is_end(event):
            _ends[UUID(event.resource.id.removeprefix(PREFIX))] = event
        await send(self, event)

    # Prefect emits task runs with this very class alone, so no class of ours can take its place;
    # hooks on tasks would write two lines into each one's log. This can go when Prefect's server
    # stores an event before it says that it has it.
    PrefectEventsClient._emit = keep
    try:
        yield
    finally:
        EventsWorker.instance().wait_until_empty()
        PrefectEventsClient._emit = send


def _is_end(event: Event) -> bool:
    if not event.resource.id.startswith(PREFIX) or "validated_state" not in event.payload:
        return False
    return event.payload["validated_state"]["type"] in TERMINAL_STATES


def _settled(patience_s: float) -> bool:
    """Send missing events until the server has all of them.

    Returns: False if it does not after `patience_s`.
    """
    start = time.monotonic()
    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
        while _ends and (waited_s := time.monotonic() - start) < patience_s:
            try:
                _compare(send=waited_s > GRACE_S)
            except httpx.HTTPError as error:
                logger.debug("the Prefect server does not answer: %s", error)
            if _ends:
                time.sleep(POLL_S)
    return not _ends


def _compare(*, send: bool) -> None:
    """Drop the events that the server has.

    Args: send: send the rest again, which changes nothing for an event that had arrived.
    """
    with get_client(sync_client=True) as client:
        ids = list(_ends)
        for first in range(0, len(ids), ASKED_AT_ONCE):
            some = TaskRunFilterId(any_=ids[first : first + ASKED_AT_ONCE])
            for run in client.read_task_runs(task_run_filter=TaskRunFilter(id=some)):
                if run.state_type in TERMINAL_STATES:
                    del _ends[run.id]
        if send and _ends:
            rest = [event.model_dump(mode="json") for event in _ends.values()]
            client.request("POST", "/events", json=rest).raise_for_status()
