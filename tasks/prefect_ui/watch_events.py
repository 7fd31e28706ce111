"""Alarms of the watchers as Prefect events, on which an automation can act."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from prefect.events import emit_event

from rl_core.trainers.progress import ProgressEvent, listeners
from rl_core.watch.watcher import Alarm
from schemas.receipts import RunPlan

EVENT = "rl-train.watch"
"""Start of an event's name; the watcher's name follows: `rl-train.watch.entropy`."""


@contextmanager
def alarms_as_events(plan: RunPlan) -> Iterator[None]:
    """Emit an event for every alarm that is announced inside the block."""

    def follow(event: ProgressEvent) -> None:
        if event.alarm is not None:
            emit(plan, event.alarm)

    listeners.append(follow)
    try:
        yield
    finally:
        listeners.remove(follow)


def emit(plan: RunPlan, alarm: Alarm) -> None:
    """Emit an alarm. A step that is repeated after a crash emits the same event, by its id."""
    name = f"{EVENT}.{alarm.watcher}"
    place = f"{plan.run_dir}/{alarm.title}/{alarm.first_step}"
    emit_event(
        event=name,
        id=uuid5(NAMESPACE_URL, f"{name}:{place}"),
        resource={
            "prefect.resource.id": f"rl-train.run.{Path(plan.run_dir).name}",
            "prefect.resource.name": str(plan.recipe["name"]),
            "rl-train.run": Path(plan.run_dir).name,
            "rl-train.watcher": alarm.watcher,
            "rl-train.reaction": alarm.reaction.value,
        },
        payload={
            "watcher": alarm.watcher,
            "track": alarm.track,
            "step": alarm.first_step,
            "evidence": alarm.evidence,
            "rows": list(alarm.sample_ids),
            "cause": alarm.cause,
            "advice": alarm.advice,
            "reaction": alarm.reaction.value,
            "mlflow_run_id": plan.mlflow_run_id,
        },
    )
