"""A new champion as a Prefect event, on which an automation can act."""

from __future__ import annotations

from prefect.events import emit_event

EVENT = "rl-train.champion"


def emit_champion(name: str, version: int, before: int | None, reason: str, by: str) -> None:
    """Emit that a version became champion.

    Args: before: version that was champion until now; None if there was none. reason: of the gate,
    or of the person who approved. by: the person or run that decided.
    """
    emit_event(
        event=EVENT,
        resource={
            "prefect.resource.id": f"rl-train.model.{name}",
            "prefect.resource.name": name,
            "rl-train.version": str(version),
        },
        payload={
            "model": name,
            "version": version,
            "before": before,
            "reason": reason,
            "by": by,
        },
    )
