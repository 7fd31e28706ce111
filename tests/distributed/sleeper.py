"""A component whose call takes as long as it is told."""

import time


class Sleeper:
    """Sleeps on every rank."""

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
