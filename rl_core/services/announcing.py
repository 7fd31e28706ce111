"""The event "new data", which starts the deployments with a trigger for it; those decide whether to
train."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from rl_core.errors import DataError, ServiceError
from rl_core.runtime.user_paths import user_path
from rl_core.services.catalogue import tell

EVENT = "rl-train.data.announced"
RESOURCE = "rl-train.data"
URI_LABEL = "rl-train.uri"


def announce(api: str, uri: str) -> str:
    """Emit the event.

    Args: api: address of a Prefect server's API. uri: a file or folder of this machine, or an
    address with a scheme.
    Returns: the URI in the event; a local path is made absolute.
    Raises: DataError when there is no such file; ServiceError when there is no server.
    """
    named = located(uri)
    if not api:
        raise ServiceError(
            "no Prefect server is known: start one (rl-train up), or set PREFECT_API_URL"
        )
    event = {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": EVENT,
        "resource": {
            "prefect.resource.id": RESOURCE,
            "prefect.resource.name": named,
            URI_LABEL: named,
        },
        "related": [],
        "payload": {},
    }
    tell("POST", f"{api.rstrip('/')}/events", [event])
    return named


def located(uri: str) -> str:
    """Make a local path absolute, and return any other address unchanged. Raises: DataError when a
    local path does not exist."""
    if "://" in uri:
        return uri
    path = user_path(uri).absolute()
    if not path.exists():
        raise DataError(
            f"{path} does not exist; announce what is there, or an address such as s3://bucket/rows"
        )
    return str(path)
