"""Gauges of a running training for Prometheus, `tracking.prometheus`: step, phase, and the metrics
of the last step, from the same progress events as the display in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rl_core.errors import RecipeError
from rl_core.trainers.progress import ProgressEvent, announce, listeners
from schemas.sections.tracking import PrometheusConfig

PHASES = (
    "start workers",
    "rollout",
    "reward",
    "baseline",
    "advantage",
    "train",
    "sync",
    "save",
    "evaluate",
    "export",
)


class Gauges:
    """The gauges of one run. Args: run: name of the run, a label of all of them."""

    def __init__(self, run: str) -> None:
        from prometheus_client import CollectorRegistry, Gauge

        self.registry = CollectorRegistry()
        self._run = run

        def gauge(name: str, says: str, *labels: str) -> Gauge:
            return Gauge(f"rl_train_{name}", says, ("run", *labels), registry=self.registry)

        self._step = gauge("step", "Number of the last finished step")
        self._total = gauge("steps", "Number of steps of the whole run")
        self._phase = gauge("phase", "1 for the present phase, 0 for others", "phase")
        self._since = gauge("phase_start_seconds", "Unix time at which the present phase began")
        self._metrics = gauge("metric", "Metrics of the last step, as in MLflow", "metric")

    def hear(self, event: ProgressEvent) -> None:
        """Take a progress event."""
        if event.phase in PHASES:
            for phase in PHASES:
                self._phase.labels(self._run, phase).set(phase == event.phase)
            self._since.labels(self._run).set(time.time())
        if event.phase == "step":
            self._step.labels(self._run).set(event.step)
            self._total.labels(self._run).set(event.total_steps)
            self._metrics.clear()
            for name, value in event.metrics.items():
                self._metrics.labels(self._run, name).set(value)


@contextmanager
def served_gauges(config: PrometheusConfig | None, run: str) -> Iterator[None]:
    """Answer Prometheus during the block; unset does nothing.

    Raises: RecipeError when the address cannot be listened on.
    """
    if config is None:
        yield
        return
    from prometheus_client import start_http_server

    gauges = Gauges(run)
    try:
        server, thread = start_http_server(config.port, config.host, gauges.registry)
    except OSError as error:
        reason = error.strerror or error
        raise RecipeError(
            f"tracking.prometheus: {config.host}:{config.port} cannot be listened on ({reason}); "
            "name another port, or 0 for a free one"
        ) from error
    address = f"http://{config.host}:{server.server_port}/metrics"
    announce(ProgressEvent("note", text=f"gauges for Prometheus: {address}"))
    listeners.append(gauges.hear)
    try:
        yield
    finally:
        listeners.remove(gauges.hear)
        server.shutdown()
        server.server_close()
        thread.join()
