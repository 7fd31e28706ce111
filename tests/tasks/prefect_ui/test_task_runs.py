"""A task whose end the Prefect server has lost is shown as ended all the same, once its flow is
over."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.events import Event
from prefect.events.clients import PrefectEventsClient
from prefect.runtime import flow_run

import tasks.prefect_ui.task_runs
from rl_core.services.exposure import LOCALHOST
from rl_core.services.ports import free_port
from tasks.prefect_ui.task_runs import recorded


@pytest.fixture
def losing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Loses how tasks named `lost` ended. Returns: the states that were lost."""
    lost: list[str] = []
    send = PrefectEventsClient._emit

    async def lose(client: PrefectEventsClient, event: Event) -> None:
        state = event.event.removeprefix("prefect.task-run.")
        if event.resource.get("prefect.resource.name", "").startswith("lost") and state in (
            "Completed",
            "Failed",
        ):
            lost.append(state)
        else:
            await send(client, event)

    monkeypatch.setattr(PrefectEventsClient, "_emit", lose)
    return lost


@task(task_run_name="lost")
def lost(fails: bool) -> None:
    if fails:
        raise ValueError


@task(task_run_name="kept")
def kept() -> None:
    pass


def states_of(around: AbstractContextManager[None], *, fails: bool = False) -> dict[str, str]:
    """Run a flow of both tasks. Returns: by task, its state on the server."""
    runs: list[UUID] = []

    @flow
    def both() -> None:
        runs.append(UUID(flow_run.id))
        with around:
            kept()
            lost(fails)

    both(return_state=True)
    only = FlowRunFilter(id=FlowRunFilterId(any_=runs))
    with get_client(sync_client=True) as client:
        return {
            run.name: run.state_type.value
            for run in client.read_task_runs(flow_run_filter=only)
            if run.state_type
        }


@pytest.mark.slow
@pytest.mark.parametrize(("fails", "end"), [(False, "COMPLETED"), (True, "FAILED")])
def test_an_end_that_was_lost_is_sent_again(
    prefect_harness: None, losing: list[str], fails: bool, end: str
) -> None:
    assert states_of(recorded(), fails=fails) == {"kept": "COMPLETED", "lost": end}
    assert losing == [end.capitalize()]


def test_without_it_the_task_runs_for_ever(prefect_harness: None, losing: list[str]) -> None:
    assert states_of(nullcontext())["lost"] == "RUNNING"


def test_what_the_server_never_takes_is_said(
    prefect_harness: None,
    losing: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tasks.prefect_ui.task_runs, "OUTAGE_S", 0.5)
    with caplog.at_level(logging.WARNING):
        assert states_of(recorded())["lost"] == "RUNNING"
    assert "the Prefect server shows 1 task runs as running that have ended" in caplog.text


def test_a_server_that_does_not_answer_ends_no_flow(
    prefect_harness: None,
    losing: list[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tasks.prefect_ui.task_runs, "OUTAGE_S", 0.5)

    def away(**kwargs: bool) -> AbstractContextManager[SyncPrefectClient]:
        return SyncPrefectClient(f"http://{LOCALHOST}:{free_port(LOCALHOST)}/api")

    monkeypatch.setattr(tasks.prefect_ui.task_runs, "get_client", away)
    with caplog.at_level(logging.WARNING):
        assert states_of(recorded())["kept"] == "COMPLETED"
    assert "2 task runs" in caplog.text
