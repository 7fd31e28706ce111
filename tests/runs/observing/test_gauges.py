"""What Prometheus reads of a running training, over HTTP."""

import math
import socket
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from rl_core.errors import RecipeError
from rl_core.runs.observing.gauges import served_gauges
from rl_core.trainers.progress import ProgressEvent, announce, listeners
from schemas.sections.tracking import PrometheusConfig


def values(text: str) -> dict[str, float]:
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_a_running_training_is_read_until_it_ends():
    said: list[str] = []

    def hear(event: ProgressEvent) -> None:
        said.append(event.text)

    listeners.append(hear)
    try:
        with served_gauges(PrometheusConfig(port=0), "text-1"):
            address = said[-1].split(": ", 1)[1]
            assert address.startswith("http://127.0.0.1:")
            announce(ProgressEvent("step", 1, 4, {"reward_mean": 0.25, "gone": 1.0}))
            metrics = {"reward_mean": 0.5, "seconds/train": 2.0, "grad_norm": math.nan}
            announce(ProgressEvent("step", 2, 4, metrics))
            announce(ProgressEvent("rollout", 3, 4))
            announce(ProgressEvent("note", text="a note is no phase"))
            with urlopen(address, timeout=10) as answer:
                found = values(answer.read().decode())
    finally:
        listeners.remove(hear)
    assert found['rl_train_step{run="text-1"}'] == 2
    assert found['rl_train_steps{run="text-1"}'] == 4
    assert found['rl_train_metric{metric="reward_mean",run="text-1"}'] == 0.5
    assert found['rl_train_metric{metric="seconds/train",run="text-1"}'] == 2
    assert math.isnan(found['rl_train_metric{metric="grad_norm",run="text-1"}'])
    assert 'rl_train_metric{metric="gone",run="text-1"}' not in found
    phases = {name for name, value in found.items() if name.startswith("rl_train_phase{") and value}
    assert phases == {'rl_train_phase{phase="rollout",run="text-1"}'}
    with pytest.raises(URLError):
        urlopen(address, timeout=10)


def test_an_address_that_is_taken_is_said_with_the_setting():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(RecipeError, match=rf"tracking.prometheus: 127.0.0.1:{port} cannot be"),
            served_gauges(PrometheusConfig(port=port), "text-1"),
        ):
            pass
