"""A local run ends as interrupted when it was, whatever an interrupt turned into on its way up."""

import signal
from collections.abc import Iterator

import pytest
from prefect.exceptions import TerminationSignal

from flows.local_run import interruptible

ENDINGS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """What this process did about signals, it does afterwards."""
    before = [signal.getsignal(ending) for ending in ENDINGS]
    yield
    for ending, handler in zip(ENDINGS, before, strict=True):
        signal.signal(ending, handler)


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_interrupt_stays_one(ending: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(ending)


@pytest.mark.parametrize("lost", [KeyboardInterrupt(), TerminationSignal(signal.SIGTERM)])
def test_an_error_that_came_of_an_interrupt_is_one(lost: BaseException) -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            raise lost
        except BaseException:
            _ = dict[str, str]()["a task run that is not set"]


def test_an_error_without_a_signal_is_that_error() -> None:
    with pytest.raises(ValueError, match="no signal"), interruptible():
        raise ValueError("no signal")


@pytest.mark.parametrize("interrupted", [True, False])
@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_a_circle_of_causes_is_followed_once(link: str, length: int, interrupted: bool) -> None:
    circle = [ValueError(f"number {number}") for number in range(length)]
    for error, next_error in zip(circle, [*circle[1:], circle[0]], strict=True):
        setattr(error, link, next_error)
    if interrupted:
        other = {"__cause__": "__context__", "__context__": "__cause__"}[link]
        setattr(circle[-1], other, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt if interrupted else ValueError), interruptible():
        raise circle[0]
