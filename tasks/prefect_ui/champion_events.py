"""A new champion, and the Prefect event that says so, on which an automation can act."""

from __future__ import annotations

from prefect.events import emit_event
from prefect.settings import get_current_settings

from rl_core.tracking.model_versions import Promotion, promote

EVENT = "rl-train.champion"


def make_champion(
    tracking_uri: str, name: str, version: int, reason: str, by: str | None = None
) -> Promotion:
    """Move the champion alias to a version as `promote` does, and emit the event if the champion is
    another one now. Every move of the alias comes through here.

    Without a server nobody could act on the event, and Prefect would start one for it.
    """
    done = promote(tracking_uri, name, version, reason, by=by)
    if done.over != done.version and get_current_settings().api.url is not None:
        _emit(name, done)
    return done


def _emit(name: str, done: Promotion) -> None:
    emit_event(
        event=EVENT,
        resource={
            "prefect.resource.id": f"rl-train.model.{name}",
            "prefect.resource.name": name,
            "rl-train.version": str(done.version),
        },
        payload={
            "model": name,
            "version": done.version,
            "before": done.over,
            "reason": done.reason,
            "by": done.by,
        },
    )
