"""A local run ends as interrupted when it was, whatever an interrupt turned into on its way up."""

import signal
from collections.abc import Iterator

import pytest

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
@pytest.mark.parametrize("loses_it", [False, True])
def test_an_interrupt_stays_one(ending: signal.Signals, loses_it: bool) -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        try:
            signal.raise_signal(ending)
        except KeyboardInterrupt:
            if loses_it:
                raise ValueError("Task run is not set") from None
            raise


def test_an_error_without_a_signal_is_that_error() -> None:
    with pytest.raises(ValueError, match="no signal"), interruptible():
        raise ValueError("no signal")
