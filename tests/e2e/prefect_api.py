"""What tests ask of a Prefect server, through Prefect's own HTTP client.

Prefect's server answers 503 while its SQLite database is busy, which a busy machine sees; the
client asks again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from prefect.client.base import PrefectHttpxSyncClient

from rl_core.services.catalogue import credentials

DEADLINE_S = 300
POLL_S = 0.5
"""A server takes some hundredths of a second of processor time to answer, which runs need."""
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")


class PrefectApi:
    """The API below one URL. Every answer but a good one raises."""

    def __init__(self, url: str, password: str = "") -> None:
        self.headers = credentials(password)
        self.url = url.rstrip("/")
        """Without the path of a call, e.g. http://127.0.0.1:4200/api."""

    def get(self, path: str) -> Any:
        return self._ask("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask("POST", path, body)

    def patch(self, path: str, body: dict[str, Any]) -> Any:
        return self._ask("PATCH", path, body)

    def delete(self, path: str) -> Any:
        return self._ask("DELETE", path)

    def start(self, deployment: str, **parameters: Any) -> str:
        """Start a run of a deployment, e.g. `rl-train/text`. Returns: the flow run's id."""
        identity = self.get(f"deployments/name/{deployment}")["id"]
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return self.post(f"deployments/{identity}/create_flow_run", body)["id"]

    def flow_run(self, run: str) -> dict[str, Any]:
        return self.get(f"flow_runs/{run}")

    def wait_for_end(self, run: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Wait until a flow run is in a final state. Returns: the run."""

        def ended() -> dict[str, Any] | None:
            found = self.flow_run(run)
            return found if found["state"]["type"] in ENDED else None

        return wait_until(ended, f"the end of flow run {run}", deadline_s)

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        answer = _client().request(method, f"{self.url}/{path}", json=body, headers=self.headers)
        return answer.json() if answer.content else None


@cache
def _client() -> PrefectHttpxSyncClient:
    """One for all; to make it takes longer than most calls do."""
    return PrefectHttpxSyncClient(timeout=60)


def wait_until(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """Wait until a condition holds. Returns: its value."""
    end = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {deadline_s} s for {what}"
        time.sleep(POLL_S)
    return value
